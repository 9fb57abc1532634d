/* Digest and statistics of a value in one pass: in pieces that stay in the first cache. No Python in here. */
#define PIECE 16384 /* bytes; a multiple of what the loops take at a time */
#define HEADER_MOST 256

typedef struct {
    Summary s;
    char digest[32];
} Facts;

/* (high, low) / divisor, rounded to the nearest double as Python divides whole numbers; the divisor is not 0. */
#if defined(__SIZEOF_INT128__)
typedef unsigned __int128 Whole;

static double quotient(Whole dividend, Whole divisor) {
    if (!dividend) return 0.0;
    int shift = 0;
    while (!(dividend >> 127)) dividend <<= 1, shift++;
    Whole found = dividend / divisor, left = dividend % divisor;
    int sticky = left != 0, down = 0;
    while (found >> 63) sticky |= (int)(found & 1), found >>= 1, down++;
    return ldexp((double)(uint64_t)(found | (Whole)sticky), down - shift);
}

/* As statistics.of_sums computes them: in whole numbers until the last division. */
static int summarise_sums(const Bytes *b, uint64_t count, Summary *s) {
    memset(s, 0, sizeof *s);
    if (count >> 31) return 0; /* the divisor below has 62 bits, so that a quotient has 65 */
    s->finite = count, s->zeros = b->zeros;
    if (!count) return 1;
    s->low = b->low, s->high = b->high;
    s->mean = quotient(b->sum, count);
    s->std = sqrt(quotient((Whole)count * b->squares - (Whole)b->sum * b->sum, (Whole)count * count));
    return 1;
}
#else
static int summarise_sums(const Bytes *b, uint64_t count, Summary *s) { return 0; }
#endif

/* A header, then content: fed as it comes, or gathered where both are short. */
typedef struct {
    Digest d;
    StripesLoop stripes;
    int is_short;
    size_t held;
    uint8_t together[SHORT_MOST + 1];
} Hash;

static void hash_feed(Hash *h, const uint8_t *from, size_t n) {
    if (!h->is_short) {
        digest_feed(&h->d, h->stripes, from, n);
        return;
    }
    memcpy(h->together + h->held, from, n);
    h->held += n;
}

static void hash_begin(Hash *h, StripesLoop stripes, const char *header, size_t head, size_t content) {
    h->stripes = stripes, h->held = 0;
    h->is_short = head + content <= SHORT_MOST;
    if (!h->is_short) digest_begin(&h->d);
    hash_feed(h, (const uint8_t *)header, head);
}

static void hash_finish(Hash *h, char *hex) {
    if (h->is_short) digest_short(h->together, h->held, hex);
    else digest_finish(&h->d, hex);
}

/* Statistics of `count` stripes from `src` on, and the digest of those from `src + shift` on. */
typedef void (*FloatStripesLoop)(Digest *, const uint8_t *src, size_t shift, size_t count, Floats *);
typedef void (*PixelStripesLoop)(Digest *, const uint8_t *src, size_t shift, size_t count, Bytes *);

typedef struct {
    StripesLoop stripes;
    FloatsLoop floats;
    FloatStripesLoop float_stripes; /* NULL where there is none */
    void (*bytes)(const uint8_t *, size_t, Bytes *);
    void (*rgbx)(const uint8_t *, uint8_t *, size_t, Bytes *);
    PixelStripesLoop pixel_stripes; /* NULL where there is none */
} Loops;

static int facts_of_bytes(const Loops *use, Hash *h, const uint8_t *src, size_t n, Facts *f) {
    Bytes b = {.low = 255};
    for (size_t at = 0; at < n; at += PIECE) {
        size_t some = n - at < PIECE ? n - at : PIECE;
        use->bytes(src + at, some, &b);
        hash_feed(h, src + at, some);
    }
    hash_finish(h, f->digest);
    return summarise_sums(&b, n, &f->s);
}

/* Copy bytes of pixels, the first of which is byte `at` of its picture, with 255 for each fourth. */
static void copy_padded(uint8_t *to, const uint8_t *src, size_t at, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = (at + i) % 4 == 3 ? 255 : src[at + i];
}

#define PIXELS_AT_ONCE_LEAST 64

/* All pixels of a picture. The header is in the digest already, so that its stripes begin elsewhere than the words of the sums. */
static void take_pixels_at_once(const Loops *use, Digest *d, const uint8_t *src, size_t pixels, Bytes *b) {
    uint8_t padded[4 * STRIPE];
    size_t n = 4 * pixels, shift = STRIPE - d->held, whole = (n - shift - 1) / STRIPE, begin = shift + whole * STRIPE;
    copy_padded(d->rest + d->held, src, 0, shift);
    use->stripes(d, d->rest, 1);
    use->pixel_stripes(d, src, shift, whole, b);
    use->rgbx(src + whole * STRIPE, padded, pixels - whole * STRIPE / 4, b);
    copy_padded(d->before, src, begin - STRIPE, STRIPE);
    d->held = n - begin, d->total += n;
    copy_padded(d->rest, src, begin, d->held);
}

/* Pixels of four bytes, the fourth of which is taken for 255 and left out of the statistics. */
static int facts_of_pixels(const Loops *use, Hash *h, const uint8_t *src, size_t pixels, Facts *f) {
    Bytes b = {.low = 255};
    uint8_t padded[PIECE];
    if (use->pixel_stripes && !h->is_short && pixels >= PIXELS_AT_ONCE_LEAST) {
        take_pixels_at_once(use, &h->d, src, pixels, &b);
    } else {
        for (size_t at = 0; at < pixels; at += PIECE / 4) {
            size_t some = pixels - at < PIECE / 4 ? pixels - at : PIECE / 4;
            use->rgbx(src + 4 * at, padded, some, &b);
            hash_feed(h, padded, 4 * some);
        }
    }
    hash_finish(h, f->digest);
    return summarise_sums(&b, 3 * (uint64_t)pixels, &f->s);
}

#if HAVE_AVX2
#define AHEAD 512 /* bytes: what comes from a slower cache arrives while others are computed */

/* `floats_avx2` and `stripes_avx2` in one loop: each waits for other parts of the processor, and for memory once instead of twice. */
AVX2 static void float_stripes_avx2(Digest *d, const uint8_t *src, size_t shift, size_t count, Floats *f) {
    const __m256 none = _mm256_setzero_ps();
    __m256d sum[4], squares[4];
    __m256 low[2], high[2];
    __m256i acc[2], zeros = _mm256_setzero_si256();
    for (int k = 0; k < 4; k++) {
        sum[k] = _mm256_loadu_pd(f->sum + 4 * k);
        squares[k] = _mm256_loadu_pd(f->squares + 4 * k);
    }
    for (int k = 0; k < 2; k++) {
        low[k] = _mm256_loadu_ps(f->low + 8 * k);
        high[k] = _mm256_loadu_ps(f->high + 8 * k);
        acc[k] = _mm256_loadu_si256((const __m256i *)d->acc + k);
    }
    while (count) {
        size_t some = count < STRIPES_OF_BLOCK - d->stripes ? count : STRIPES_OF_BLOCK - d->stripes;
        const uint8_t *secret = SECRET + 8 * d->stripes;
        for (size_t n = 0; n < some; n++, src += STRIPE, secret += 8) {
            _mm_prefetch((const char *)src + AHEAD, _MM_HINT_T0);
            for (int k = 0; k < 2; k++) {
                acc[k] = added_stripe(acc[k], src + shift + 32 * k, secret + 32 * k);
                __m256 x = _mm256_loadu_ps((const float *)(src + 32 * k));
                __m256d a = _mm256_cvtps_pd(_mm_loadu_ps((const float *)(src + 32 * k)));
                __m256d b = _mm256_cvtps_pd(_mm_loadu_ps((const float *)(src + 32 * k + 16)));
                sum[2 * k] = _mm256_add_pd(sum[2 * k], a);
                sum[2 * k + 1] = _mm256_add_pd(sum[2 * k + 1], b);
                squares[2 * k] = _mm256_fmadd_pd(a, a, squares[2 * k]);
                squares[2 * k + 1] = _mm256_fmadd_pd(b, b, squares[2 * k + 1]);
                low[k] = _mm256_min_ps(x, low[k]);
                high[k] = _mm256_max_ps(x, high[k]);
                zeros = _mm256_sub_epi32(zeros, _mm256_castps_si256(_mm256_cmp_ps(x, none, _CMP_EQ_OQ)));
            }
        }
        count -= some, d->stripes += some;
        if (d->stripes < STRIPES_OF_BLOCK) continue;
        d->stripes = 0;
        for (int k = 0; k < 2; k++) acc[k] = scrambled(acc[k], k);
    }
    f->zeros += add_up_32(zeros);
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_pd(f->sum + 4 * k, sum[k]);
        _mm256_storeu_pd(f->squares + 4 * k, squares[k]);
    }
    for (int k = 0; k < 2; k++) {
        _mm256_storeu_ps(f->low + 8 * k, low[k]);
        _mm256_storeu_ps(f->high + 8 * k, high[k]);
        _mm256_storeu_si256((__m256i *)d->acc + k, acc[k]);
    }
}

AVX512 static void float_stripes_avx512(Digest *d, const uint8_t *src, size_t shift, size_t count, Floats *f) {
    GatheredFloats g = begin_wide_floats(f);
    __m512i acc = _mm512_loadu_si512(d->acc);
    while (count) {
        size_t some = count < STRIPES_OF_BLOCK - d->stripes ? count : STRIPES_OF_BLOCK - d->stripes;
        const uint8_t *secret = SECRET + 8 * d->stripes;
        for (size_t n = 0; n < some; n++, src += STRIPE, secret += 8) {
            _mm_prefetch((const char *)src + AHEAD, _MM_HINT_T0);
            acc = added_wide_stripe(acc, _mm512_loadu_si512(src + shift), secret);
            gather_wide_floats(&g, src);
        }
        count -= some, d->stripes += some;
        if (d->stripes < STRIPES_OF_BLOCK) continue;
        d->stripes = 0;
        acc = scrambled_wide(acc);
    }
    take_wide_zeros(f, &g);
    end_wide_floats(f, &g);
    _mm512_storeu_si512(d->acc, acc);
}

AVX512 static void pixel_stripes_avx512(Digest *d, const uint8_t *src, size_t shift, size_t count, Bytes *b) {
    const __m512i none = _mm512_setzero_si512(), pad = _mm512_set1_epi32((int)PAD);
    const __m512i moved_pad = _mm512_set1_epi32((int)(0xFFu << 8 * ((3 - shift) & 3)));
    Gathered g = {_mm512_set1_epi8(-1), none, none, none, none, none};
    __m512i acc = _mm512_loadu_si512(d->acc);
    size_t rounds = 0;
    int is_any = count > 0;
    while (count) {
        size_t some = count < STRIPES_OF_BLOCK - d->stripes ? count : STRIPES_OF_BLOCK - d->stripes;
        const uint8_t *secret = SECRET + 8 * d->stripes;
        for (size_t n = 0; n < some; n++, src += STRIPE, secret += 8) {
            _mm_prefetch((const char *)src + AHEAD, _MM_HINT_T0);
            acc = added_wide_stripe(acc, _mm512_or_si512(_mm512_loadu_si512(src + shift), moved_pad), secret);
            __m512i v = _mm512_loadu_si512(src);
            gather_wide(&g, _mm512_andnot_si512(pad, v), _mm512_or_si512(v, pad));
        }
        count -= some, d->stripes += some, rounds += some;
        if (!count || rounds + STRIPES_OF_BLOCK > COUNTED_ROUNDS) {
            add_wide_sums(b, g.zeros, g.even, g.odd);
            g.zeros = g.even = g.odd = none;
            rounds = 0;
        }
        if (d->stripes < STRIPES_OF_BLOCK) continue;
        d->stripes = 0;
        acc = scrambled_wide(acc);
    }
    b->sum += (uint64_t)_mm512_reduce_add_epi64(g.sum);
    if (is_any) add_wide_bounds(b, g.low, g.high);
    _mm512_storeu_si512(d->acc, acc);
}
#endif

#define AT_ONCE_LEAST (4 * STRIPE)
#define AT_ONCE_MOST ((size_t)1 << 31) /* bytes: zeros are counted in 32 bits */

/* All of so many bytes. The header is in the digest already, so that its stripes begin elsewhere than the lanes of the sums. */
static void take_at_once(const Loops *use, Digest *d, const uint8_t *src, size_t n, Floats *g) {
    size_t shift = STRIPE - d->held, whole = (4 * n - shift - 1) / STRIPE, begin = shift + whole * STRIPE;
    memcpy(d->rest + d->held, src, shift);
    use->stripes(d, d->rest, 1);
    use->float_stripes(d, src, shift, whole, g);
    use->floats(src + whole * STRIPE, n - whole * LANES, g);
    memcpy(d->before, src + begin - STRIPE, STRIPE);
    d->held = 4 * n - begin, d->total += 4 * n;
    memcpy(d->rest, src + begin, d->held);
}

static int facts_of_floats(const Loops *use, Hash *h, const uint8_t *src, size_t n, Facts *f) {
    Floats g;
    floats_begin(&g);
    if (use->float_stripes && !h->is_short && 4 * n >= AT_ONCE_LEAST && 4 * n <= AT_ONCE_MOST) {
        take_at_once(use, &h->d, src, n, &g);
    } else {
        for (size_t at = 0; at < n; at += PIECE / 4) {
            size_t some = n - at < PIECE / 4 ? n - at : PIECE / 4;
            use->floats(src + 4 * at, some, &g);
            hash_feed(h, src + 4 * at, 4 * some);
        }
    }
    hash_finish(h, f->digest);
    summarise_floats(src, n, &g, &f->s);
    return 1;
}
