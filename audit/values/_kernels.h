/* The loops behind _native.c: one pass over memory each, no Python in here.
 *
 * Every kernel exists as plain C and, on x86-64 with gcc or clang, with AVX2, those that read every value with AVX-512 too;
 * which one runs is decided at run time. All give the same bits: integers are exact, and sums of floats go through the same sixteen double lanes in the
 * same order (the square of a float is exact in a double, so a fused multiply-add changes nothing).
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_AVX2 1
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq")))
#else
#define HAVE_AVX2 0
#endif

#define LANES 16
#define PAD 0xFF000000u

/* ---- bytes ------------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t sum, squares, zeros;
    unsigned low, high;
} Bytes;

/* Blocks of 32-bit sums: a compiler vectorises these, and 65,536 squares of a byte fit. */
static void block(const uint8_t *restrict src, size_t n, Bytes *b) {
    uint32_t sum = 0, squares = 0, zeros = 0;
    uint8_t low = 255, high = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t v = src[i];
        sum += v;
        squares += (uint32_t)(v * v);
        zeros += v == 0;
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    b->sum += sum, b->squares += squares, b->zeros += zeros;
    b->low = low < b->low ? low : b->low;
    b->high = high > b->high ? high : b->high;
}

static void bytes_plain(const uint8_t *src, size_t n, Bytes *b) {
    for (size_t i = 0; i < n; i += 32768) block(src + i, n - i < 32768 ? n - i : 32768, b);
}

/* Pixels of four bytes: the fourth becomes 255 in `dst` and is left out of the statistics. */
static void rgbx_plain(const uint8_t *src, uint8_t *dst, size_t pixels, Bytes *b) {
    for (size_t i = 0; i < pixels; i += 4096) {
        size_t some = pixels - i < 4096 ? pixels - i : 4096;
        uint32_t words[4096];
        memcpy(words, src + 4 * i, 4 * some);
        for (int band = 0; band < 24; band += 8) {
            uint8_t one[4096];
            for (size_t k = 0; k < some; k++) one[k] = (uint8_t)(words[k] >> band);
            block(one, some, b);
        }
        for (size_t k = 0; k < some; k++) words[k] |= PAD;
        memcpy(dst + 4 * i, words, 4 * some);
    }
}

#if HAVE_AVX2
AVX2 static uint64_t add_up(__m256i v) {
    uint64_t q[4];
    _mm256_storeu_si256((__m256i *)q, v);
    return q[0] + q[1] + q[2] + q[3];
}

AVX2 static uint64_t add_up_32(__m256i v) {
    uint32_t q[8];
    uint64_t total = 0;
    _mm256_storeu_si256((__m256i *)q, v);
    for (int i = 0; i < 8; i++) total += q[i];
    return total;
}

/* `dst` is NULL for plain bytes; else words whose top byte is padding. */
AVX2 static inline __attribute__((always_inline)) size_t wide(const uint8_t *src, uint8_t *dst, size_t n, Bytes *b) {
    const __m256i none = _mm256_setzero_si256(), pad = _mm256_set1_epi32((int)PAD);
    __m256i low = _mm256_set1_epi8(-1), high = none, sum = none;
    size_t i = 0;
    uint8_t ends[32];
    while (n - i >= 32) {
        /* 255 rounds: as far as a count of zeros in one byte goes; the squares have room for 33,000. */
        size_t rounds = (n - i) / 32 < 255 ? (n - i) / 32 : 255;
        __m256i zeros = none, even = none, odd = none;
        for (size_t r = 0; r < rounds; r++, i += 32) {
            __m256i v = _mm256_loadu_si256((const __m256i *)(src + i)), full = v;
            if (dst) {
                full = _mm256_or_si256(v, pad);
                v = _mm256_andnot_si256(pad, v);
                _mm256_storeu_si256((__m256i *)(dst + i), full);
            }
            __m256i a = _mm256_unpacklo_epi8(v, none), c = _mm256_unpackhi_epi8(v, none);
            even = _mm256_add_epi32(even, _mm256_madd_epi16(a, a));
            odd = _mm256_add_epi32(odd, _mm256_madd_epi16(c, c));
            sum = _mm256_add_epi64(sum, _mm256_sad_epu8(v, none));
            low = _mm256_min_epu8(low, full);
            high = _mm256_max_epu8(high, v);
            zeros = _mm256_sub_epi8(zeros, _mm256_cmpeq_epi8(full, none));
        }
        b->zeros += add_up(_mm256_sad_epu8(zeros, none));
        b->squares += add_up_32(even) + add_up_32(odd);
    }
    b->sum += add_up(sum);
    if (i) {
        _mm256_storeu_si256((__m256i *)ends, low);
        for (int k = 0; k < 32; k++) b->low = ends[k] < b->low ? ends[k] : b->low;
        _mm256_storeu_si256((__m256i *)ends, high);
        for (int k = 0; k < 32; k++) b->high = ends[k] > b->high ? ends[k] : b->high;
    }
    return i;
}

AVX2 static void bytes_avx2(const uint8_t *src, size_t n, Bytes *b) {
    size_t done = wide(src, NULL, n, b);
    bytes_plain(src + done, n - done, b);
}

AVX2 static void rgbx_avx2(const uint8_t *src, uint8_t *dst, size_t pixels, Bytes *b) {
    size_t done = wide(src, dst, 4 * pixels, b);
    rgbx_plain(src + done, dst + done, pixels - done / 4, b);
}

/* Sums of the bytes of words that are 64 at a time: `zeros` has counts of bytes, the others sums in 32 bits. */
AVX512 static inline __attribute__((always_inline)) void add_wide_sums(Bytes *b, __m512i zeros, __m512i even, __m512i odd) {
    const __m512i words = _mm512_set1_epi64(0xFFFFFFFF);
    b->zeros += (uint64_t)_mm512_reduce_add_epi64(_mm512_sad_epu8(zeros, _mm512_setzero_si512()));
    __m512i pairs = _mm512_add_epi64(_mm512_and_si512(even, words), _mm512_srli_epi64(even, 32));
    pairs = _mm512_add_epi64(pairs, _mm512_add_epi64(_mm512_and_si512(odd, words), _mm512_srli_epi64(odd, 32)));
    b->squares += (uint64_t)_mm512_reduce_add_epi64(pairs);
}

AVX512 static inline __attribute__((always_inline)) void add_wide_bounds(Bytes *b, __m512i low, __m512i high) {
    uint8_t ends[64];
    _mm512_storeu_si512(ends, low);
    for (int k = 0; k < 64; k++) b->low = ends[k] < b->low ? ends[k] : b->low;
    _mm512_storeu_si512(ends, high);
    for (int k = 0; k < 64; k++) b->high = ends[k] > b->high ? ends[k] : b->high;
}

/* What is gathered of 64 bytes at a time; `full` are the bytes with 255 for padding, `v` with 0. */
typedef struct {
    __m512i low, high, sum, zeros, even, odd;
} Gathered;

AVX512 static inline __attribute__((always_inline)) void gather_wide(Gathered *g, __m512i v, __m512i full) {
    const __m512i none = _mm512_setzero_si512();
    __m512i a = _mm512_and_si512(v, _mm512_set1_epi16(255)), c = _mm512_srli_epi16(v, 8);
    g->even = _mm512_add_epi32(g->even, _mm512_madd_epi16(a, a));
    g->odd = _mm512_add_epi32(g->odd, _mm512_madd_epi16(c, c));
    g->sum = _mm512_add_epi64(g->sum, _mm512_sad_epu8(v, none));
    g->low = _mm512_min_epu8(g->low, full);
    g->high = _mm512_max_epu8(g->high, v);
    g->zeros = _mm512_mask_add_epi8(g->zeros, _mm512_testn_epi8_mask(full, full), g->zeros, _mm512_set1_epi8(1));
}

#define COUNTED_ROUNDS 255 /* as far as a count of zeros in one byte goes; the squares have room for 33,000 */

/* As `wide`, with 64 bytes at a time. */
AVX512 static inline __attribute__((always_inline)) size_t wider(const uint8_t *src, uint8_t *dst, size_t n, Bytes *b) {
    const __m512i none = _mm512_setzero_si512(), pad = _mm512_set1_epi32((int)PAD);
    Gathered g = {.low = _mm512_set1_epi8(-1), .high = none, .sum = none};
    size_t i = 0;
    while (n - i >= 64) {
        size_t rounds = (n - i) / 64 < COUNTED_ROUNDS ? (n - i) / 64 : COUNTED_ROUNDS;
        g.zeros = g.even = g.odd = none;
        for (size_t r = 0; r < rounds; r++, i += 64) {
            __m512i v = _mm512_loadu_si512(src + i), full = v;
            if (dst) {
                full = _mm512_or_si512(v, pad);
                v = _mm512_andnot_si512(pad, v);
                _mm512_storeu_si512(dst + i, full);
            }
            gather_wide(&g, v, full);
        }
        add_wide_sums(b, g.zeros, g.even, g.odd);
    }
    b->sum += (uint64_t)_mm512_reduce_add_epi64(g.sum);
    if (i) add_wide_bounds(b, g.low, g.high);
    return i;
}

AVX512 static void bytes_avx512(const uint8_t *src, size_t n, Bytes *b) {
    size_t done = wider(src, NULL, n, b);
    bytes_avx2(src + done, n - done, b);
}

AVX512 static void rgbx_avx512(const uint8_t *src, uint8_t *dst, size_t pixels, Bytes *b) {
    size_t done = wider(src, dst, 4 * pixels, b);
    rgbx_avx2(src + done, dst + done, pixels - done / 4, b);
}
#endif

/* ---- floats ------------------------------------------------------------------------------------------------ */

typedef struct {
    double sum[LANES], squares[LANES];
    float low[LANES], high[LANES];
    uint64_t zeros;
} Floats;

static inline float float_at(const uint8_t *src, size_t i) {
    float x; /* the buffer need not be aligned */
    memcpy(&x, src + 4 * i, 4);
    return x;
}

static void floats_plain(const uint8_t *src, size_t n, Floats *f) {
    Floats g = *f; /* a local copy: the compiler knows that nothing else points to it */
    float x[LANES];
    for (size_t i = 0; i < n; i += LANES) {
        int some = n - i < LANES ? (int)(n - i) : LANES;
        memcpy(x, src + 4 * i, 4 * (size_t)some);
        for (int k = 0; k < some; k++) {
            g.sum[k] += x[k];
            g.squares[k] += (double)x[k] * x[k];
            g.zeros += x[k] == 0;
            g.low[k] = x[k] < g.low[k] ? x[k] : g.low[k];
            g.high[k] = x[k] > g.high[k] ? x[k] : g.high[k];
        }
    }
    *f = g;
}

#if HAVE_AVX2
AVX2 static void floats_avx2(const uint8_t *src, size_t n, Floats *f) {
    const __m256 none = _mm256_setzero_ps();
    size_t i = 0;
    __m256d sum[4], squares[4];
    __m256 low[2], high[2];
    for (int k = 0; k < 4; k++) {
        sum[k] = _mm256_loadu_pd(f->sum + 4 * k);
        squares[k] = _mm256_loadu_pd(f->squares + 4 * k);
    }
    for (int k = 0; k < 2; k++) {
        low[k] = _mm256_loadu_ps(f->low + 8 * k);
        high[k] = _mm256_loadu_ps(f->high + 8 * k);
    }
    while (n - i >= LANES) {
        size_t rounds = (n - i) / LANES < (1u << 26) ? (n - i) / LANES : (1u << 26);
        __m256i zeros = _mm256_setzero_si256();
        for (size_t r = 0; r < rounds; r++, i += LANES) {
            for (int k = 0; k < 2; k++) {
                __m256 x = _mm256_loadu_ps((const float *)(src + 4 * i) + 8 * k);
                __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
                __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
                sum[2 * k] = _mm256_add_pd(sum[2 * k], a);
                sum[2 * k + 1] = _mm256_add_pd(sum[2 * k + 1], b);
                squares[2 * k] = _mm256_fmadd_pd(a, a, squares[2 * k]);
                squares[2 * k + 1] = _mm256_fmadd_pd(b, b, squares[2 * k + 1]);
                low[k] = _mm256_min_ps(x, low[k]);
                high[k] = _mm256_max_ps(x, high[k]);
                zeros = _mm256_sub_epi32(zeros, _mm256_castps_si256(_mm256_cmp_ps(x, none, _CMP_EQ_OQ)));
            }
        }
        f->zeros += add_up_32(zeros);
    }
    for (int k = 0; k < 4; k++) {
        _mm256_storeu_pd(f->sum + 4 * k, sum[k]);
        _mm256_storeu_pd(f->squares + 4 * k, squares[k]);
    }
    for (int k = 0; k < 2; k++) {
        _mm256_storeu_ps(f->low + 8 * k, low[k]);
        _mm256_storeu_ps(f->high + 8 * k, high[k]);
    }
    _mm256_zeroupper(); /* compilers leave it out before a call at the end; SSE code that runs next, the user's too, would be slower */
    floats_plain(src + 4 * i, n - i, f);
}

/* What is gathered of 16 floats at a time. */
typedef struct {
    __m512d sum[2], squares[2];
    __m512 low, high;
    __m512i zeros;
} GatheredFloats;

AVX512 static inline __attribute__((always_inline)) GatheredFloats begin_wide_floats(const Floats *f) {
    GatheredFloats g = {.low = _mm512_loadu_ps(f->low), .high = _mm512_loadu_ps(f->high), .zeros = _mm512_setzero_si512()};
    for (int k = 0; k < 2; k++) {
        g.sum[k] = _mm512_loadu_pd(f->sum + 8 * k);
        g.squares[k] = _mm512_loadu_pd(f->squares + 8 * k);
    }
    return g;
}

AVX512 static inline __attribute__((always_inline)) void gather_wide_floats(GatheredFloats *g, const uint8_t *src) {
    __m512 x = _mm512_loadu_ps(src);
    __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x)), b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    g->sum[0] = _mm512_add_pd(g->sum[0], a);
    g->sum[1] = _mm512_add_pd(g->sum[1], b);
    g->squares[0] = _mm512_fmadd_pd(a, a, g->squares[0]);
    g->squares[1] = _mm512_fmadd_pd(b, b, g->squares[1]);
    g->low = _mm512_min_ps(x, g->low);
    g->high = _mm512_max_ps(x, g->high);
    g->zeros = _mm512_mask_add_epi32(g->zeros, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_EQ_OQ), g->zeros, _mm512_set1_epi32(1));
}

/* Take the zeros, which are counted in 32 bits, out of what was gathered. */
AVX512 static inline __attribute__((always_inline)) void take_wide_zeros(Floats *f, GatheredFloats *g) {
    f->zeros += (uint64_t)(uint32_t)_mm512_reduce_add_epi32(g->zeros);
    g->zeros = _mm512_setzero_si512();
}

AVX512 static inline __attribute__((always_inline)) void end_wide_floats(Floats *f, const GatheredFloats *g) {
    for (int k = 0; k < 2; k++) {
        _mm512_storeu_pd(f->sum + 8 * k, g->sum[k]);
        _mm512_storeu_pd(f->squares + 8 * k, g->squares[k]);
    }
    _mm512_storeu_ps(f->low, g->low);
    _mm512_storeu_ps(f->high, g->high);
}

AVX512 static void floats_avx512(const uint8_t *src, size_t n, Floats *f) {
    GatheredFloats g = begin_wide_floats(f);
    size_t i = 0;
    while (n - i >= LANES) {
        size_t rounds = (n - i) / LANES < (1u << 26) ? (n - i) / LANES : (1u << 26);
        for (size_t r = 0; r < rounds; r++, i += LANES) gather_wide_floats(&g, src + 4 * i);
        take_wide_zeros(f, &g);
    }
    end_wide_floats(f, &g);
    _mm256_zeroupper();
    floats_plain(src + 4 * i, n - i, f);
}
#endif

typedef struct {
    double low, high, mean, std;
    uint64_t zeros, nonfinite, finite;
} Summary;

typedef void (*FloatsLoop)(const uint8_t *, size_t, Floats *);

/* Sum of squared distances from `mean`: the pass that is needed only where cancellation would show. */
static double spread(const uint8_t *src, size_t n, double mean) {
    double lanes[LANES] = {0}, total = 0;
    for (size_t i = 0; i < n; i++) {
        double d = float_at(src, i) - mean;
        if (isfinite(d)) lanes[i % LANES] += d * d;
    }
    for (int k = 0; k < LANES; k++) total += lanes[k];
    return total;
}

/* Element by element, leaving out what is not finite. */
static void floats_careful(const uint8_t *src, size_t n, Floats *f, Summary *s) {
    for (size_t i = 0; i < n; i++) {
        float x = float_at(src, i);
        if (!isfinite(x)) {
            s->nonfinite++;
            continue;
        }
        f->sum[0] += x;
        f->squares[0] += (double)x * x;
        f->zeros += x == 0;
        f->low[0] = x < f->low[0] ? x : f->low[0];
        f->high[0] = x > f->high[0] ? x : f->high[0];
    }
}

static void floats_begin(Floats *f) {
    memset(f, 0, sizeof *f);
    for (int k = 0; k < LANES; k++) f->low[k] = INFINITY, f->high[k] = -INFINITY;
}

/* What follows from the sums `f` of all elements. */
static void summarise_floats(const uint8_t *src, size_t n, Floats *g, Summary *s) {
    Floats f = *g;
    double sum = 0, squares = 0;
    memset(s, 0, sizeof *s);
    for (int k = 0; k < LANES; k++) squares += f.squares[k];
    if (!isfinite(squares)) { /* squares of finite floats never overflow a double */
        floats_begin(&f);
        floats_careful(src, n, &f, s);
        squares = 0;
        for (int k = 0; k < LANES; k++) squares += f.squares[k];
    }
    s->finite = n - s->nonfinite;
    s->zeros = f.zeros;
    if (!s->finite) return;
    s->low = f.low[0], s->high = f.high[0];
    for (int k = 0; k < LANES; k++) {
        sum += f.sum[k];
        s->low = f.low[k] < s->low ? f.low[k] : s->low;
        s->high = f.high[k] > s->high ? f.high[k] : s->high;
    }
    s->low += 0.0, s->high += 0.0; /* -0.0 has no place among statistics */
    s->mean = sum / (double)s->finite;
    s->mean = s->mean < s->low ? s->low : s->mean > s->high ? s->high : s->mean;
    double power = squares / (double)s->finite, variance = power - s->mean * s->mean;
    if (variance < 1e-6 * power) variance = spread(src, n, s->mean) / (double)s->finite;
    s->std = s->low == s->high ? 0.0 : sqrt(variance > 0 ? variance : 0);
}

static void summarise(const uint8_t *src, size_t n, FloatsLoop loop, Summary *s) {
    Floats f;
    floats_begin(&f);
    loop(src, n, &f);
    summarise_floats(src, n, &f, s);
}
