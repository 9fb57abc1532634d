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

typedef struct {
    StripesLoop stripes;
    FloatsLoop floats;
    void (*bytes)(const uint8_t *, size_t, Bytes *);
    void (*rgbx)(const uint8_t *, uint8_t *, size_t, Bytes *);
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

/* Pixels of four bytes, the fourth of which is taken for 255 and left out of the statistics. */
static int facts_of_pixels(const Loops *use, Hash *h, const uint8_t *src, size_t pixels, Facts *f) {
    Bytes b = {.low = 255};
    uint8_t padded[PIECE];
    for (size_t at = 0; at < pixels; at += PIECE / 4) {
        size_t some = pixels - at < PIECE / 4 ? pixels - at : PIECE / 4;
        use->rgbx(src + 4 * at, padded, some, &b);
        hash_feed(h, padded, 4 * some);
    }
    hash_finish(h, f->digest);
    return summarise_sums(&b, 3 * (uint64_t)pixels, &f->s);
}

static int facts_of_floats(const Loops *use, Hash *h, const uint8_t *src, size_t n, Facts *f) {
    Floats g;
    floats_begin(&g);
    for (size_t at = 0; at < n; at += PIECE / 4) {
        size_t some = n - at < PIECE / 4 ? n - at : PIECE / 4;
        use->floats(src + 4 * at, some, &g);
        hash_feed(h, src + 4 * at, 4 * some);
    }
    hash_finish(h, f->digest);
    summarise_floats(src, n, &g, &f->s);
    return 1;
}
