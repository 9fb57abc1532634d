/* XXH3 with 128 bits, from its specification. Inputs of more than 240 bytes are fed in pieces, so that a piece can
 * still be in the first cache from whatever else was computed of it. No Python in here.
 *
 * Inputs of up to 16 bytes have formulas of their own; the caller leaves them to the xxhash package.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DIGEST_LEAST 17  /* bytes of header and content together */
#define SHORT_MOST 240   /* up to here another formula holds */
#define STRIPE 64
#define STRIPES_OF_BLOCK 16

static const uint64_t P64_1 = 0x9E3779B185EBCA87u, P64_2 = 0xC2B2AE3D27D4EB4Fu, P64_3 = 0x165667B19E3779F9u;
static const uint64_t P64_4 = 0x85EBCA77C2B2AE63u, P64_5 = 0x27D4EB2F165667C5u;
static const uint32_t P32_1 = 0x9E3779B1u, P32_2 = 0x85EBCA77u, P32_3 = 0xC2B2AE3Du;

/* The secret that the specification gives for hashing without a seed. */
static const uint8_t SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

typedef struct {
    uint64_t acc[8];
    uint64_t total;
    size_t stripes;           /* of the block under way */
    size_t held;              /* bytes in `rest`, at most a stripe */
    uint8_t rest[STRIPE];     /* not consumed yet: the last stripe is treated differently */
    uint8_t before[STRIPE];   /* the stripe that was consumed last */
} Digest;

typedef void (*StripesLoop)(Digest *, const uint8_t *, size_t);

static uint64_t word_at(const uint8_t *p) {
    uint64_t w;
    memcpy(&w, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    w = __builtin_bswap64(w);
#endif
    return w;
}

static void digest_begin(Digest *d) {
    const uint64_t acc[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    memcpy(d->acc, acc, sizeof acc);
    d->total = d->stripes = d->held = 0;
}

static void add_stripe(uint64_t *acc, const uint8_t *from, const uint8_t *secret) {
    for (int i = 0; i < 8; i++) {
        uint64_t value = word_at(from + 8 * i), key = value ^ word_at(secret + 8 * i);
        acc[i ^ 1] += value;
        acc[i] += (key & 0xFFFFFFFFu) * (key >> 32);
    }
}

static void stripes_plain(Digest *d, const uint8_t *from, size_t count) {
    for (size_t n = 0; n < count; n++, from += STRIPE) {
        add_stripe(d->acc, from, SECRET + 8 * d->stripes);
        if (++d->stripes < STRIPES_OF_BLOCK) continue;
        d->stripes = 0;
        for (int i = 0; i < 8; i++) {
            uint64_t a = d->acc[i];
            d->acc[i] = (a ^ (a >> 47) ^ word_at(SECRET + sizeof SECRET - STRIPE + 8 * i)) * P32_1;
        }
    }
}

#if HAVE_AVX2
/* Half a stripe of an accumulator's half, as `add_stripe` has it. */
AVX2 static inline __m256i added_stripe(__m256i acc, const uint8_t *from, const uint8_t *secret) {
    __m256i value = _mm256_loadu_si256((const __m256i *)from);
    __m256i key = _mm256_xor_si256(value, _mm256_loadu_si256((const __m256i *)secret));
    __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
    return _mm256_add_epi64(product, _mm256_add_epi64(acc, _mm256_shuffle_epi32(value, _MM_SHUFFLE(1, 0, 3, 2))));
}

/* Half `k` of an accumulator at the end of a block. */
AVX2 static inline __m256i scrambled(__m256i acc, int k) {
    const __m256i prime = _mm256_set1_epi32((int)P32_1), *end = (const __m256i *)(SECRET + sizeof SECRET - STRIPE);
    __m256i mixed = _mm256_xor_si256(_mm256_xor_si256(acc, _mm256_srli_epi64(acc, 47)), _mm256_loadu_si256(end + k));
    __m256i upper = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(upper, 32));
}

AVX2 static void stripes_avx2(Digest *d, const uint8_t *from, size_t count) {
    __m256i acc[2];
    for (int k = 0; k < 2; k++) acc[k] = _mm256_loadu_si256((const __m256i *)d->acc + k);
    for (size_t n = 0; n < count; n++, from += STRIPE) {
        for (int k = 0; k < 2; k++) acc[k] = added_stripe(acc[k], from + 32 * k, SECRET + 8 * d->stripes + 32 * k);
        if (++d->stripes < STRIPES_OF_BLOCK) continue;
        d->stripes = 0;
        for (int k = 0; k < 2; k++) acc[k] = scrambled(acc[k], k);
    }
    for (int k = 0; k < 2; k++) _mm256_storeu_si256((__m256i *)d->acc + k, acc[k]);
}

/* A whole stripe of an accumulator: what does not depend on it is added first, so that a stripe waits for one addition of the last. */
AVX512 static inline __m512i added_wide_stripe(__m512i acc, __m512i value, const uint8_t *secret) {
    __m512i key = _mm512_xor_si512(value, _mm512_loadu_si512(secret));
    __m512i product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));
    return _mm512_add_epi64(acc, _mm512_add_epi64(product, _mm512_shuffle_epi32(value, _MM_PERM_BADC)));
}

AVX512 static inline __m512i scrambled_wide(__m512i acc) {
    const __m512i prime = _mm512_set1_epi32((int)P32_1), end = _mm512_loadu_si512(SECRET + sizeof SECRET - STRIPE);
    __m512i mixed = _mm512_xor_si512(_mm512_xor_si512(acc, _mm512_srli_epi64(acc, 47)), end);
    __m512i upper = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
    return _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64(upper, 32));
}

AVX512 static void stripes_avx512(Digest *d, const uint8_t *from, size_t count) {
    __m512i acc = _mm512_loadu_si512(d->acc);
    while (count) {
        size_t some = count < STRIPES_OF_BLOCK - d->stripes ? count : STRIPES_OF_BLOCK - d->stripes;
        const uint8_t *secret = SECRET + 8 * d->stripes;
        for (size_t n = 0; n < some; n++, from += STRIPE, secret += 8)
            acc = added_wide_stripe(acc, _mm512_loadu_si512(from), secret);
        count -= some, d->stripes += some;
        if (d->stripes < STRIPES_OF_BLOCK) continue;
        d->stripes = 0;
        acc = scrambled_wide(acc);
    }
    _mm512_storeu_si512(d->acc, acc);
}
#endif

/* A stripe is consumed only when something follows it. */
static void digest_feed(Digest *d, StripesLoop loop, const uint8_t *from, size_t n) {
    d->total += n;
    if (d->held + n <= STRIPE) {
        memcpy(d->rest + d->held, from, n);
        d->held += n;
        return;
    }
    size_t missing = STRIPE - d->held, whole;
    memcpy(d->rest + d->held, from, missing);
    from += missing, n -= missing;
    loop(d, d->rest, 1);
    memcpy(d->before, d->rest, STRIPE);
    whole = (n - 1) / STRIPE;
    if (whole) {
        loop(d, from, whole);
        from += whole * STRIPE, n -= whole * STRIPE;
        memcpy(d->before, from - STRIPE, STRIPE);
    }
    memcpy(d->rest, from, n);
    d->held = n;
}

static uint64_t folded(uint64_t a, uint64_t b) {
#if defined(__SIZEOF_INT128__)
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t al = a & 0xFFFFFFFFu, ah = a >> 32, bl = b & 0xFFFFFFFFu, bh = b >> 32;
    uint64_t low = al * bl, one = ah * bl, two = al * bh, high = ah * bh;
    uint64_t middle = (low >> 32) + (one & 0xFFFFFFFFu) + two;
    return ((middle << 32) | (low & 0xFFFFFFFFu)) ^ (high + (one >> 32) + (middle >> 32));
#endif
}

static uint64_t avalanche(uint64_t h) {
    h ^= h >> 37;
    h *= 0x165667919E3779F9u;
    return h ^ (h >> 32);
}

static void write_hex(uint64_t high, uint64_t low, char *hex) {
    for (int i = 0; i < 16; i++) {
        hex[i] = "0123456789abcdef"[(high >> (60 - 4 * i)) & 15];
        hex[16 + i] = "0123456789abcdef"[(low >> (60 - 4 * i)) & 15];
    }
}

static uint64_t merged(const uint64_t *acc, const uint8_t *secret, uint64_t start) {
    for (int i = 0; i < 4; i++)
        start += folded(acc[2 * i] ^ word_at(secret + 16 * i), acc[2 * i + 1] ^ word_at(secret + 16 * i + 8));
    return avalanche(start);
}

/* 32 hexadecimal digits, without an end. */
static void digest_finish(Digest *d, char *hex) {
    uint8_t last[STRIPE];
    memcpy(last, d->before + d->held, STRIPE - d->held);
    memcpy(last + STRIPE - d->held, d->rest, d->held);
    add_stripe(d->acc, last, SECRET + sizeof SECRET - STRIPE - 7);
    write_hex(merged(d->acc, SECRET + sizeof SECRET - STRIPE - 11, ~(d->total * P64_2)),
              merged(d->acc, SECRET + 11, d->total * P64_1), hex);
}

static void mix(uint64_t *acc, const uint8_t *one, const uint8_t *two, const uint8_t *secret) {
    acc[0] += folded(word_at(one) ^ word_at(secret), word_at(one + 8) ^ word_at(secret + 8));
    acc[0] ^= word_at(two) + word_at(two + 8);
    acc[1] += folded(word_at(two) ^ word_at(secret + 16), word_at(two + 8) ^ word_at(secret + 24));
    acc[1] ^= word_at(one) + word_at(one + 8);
}

/* Of 17 to 240 bytes that lie together. */
static void digest_short(const uint8_t *from, size_t n, char *hex) {
    uint64_t acc[2] = {n * P64_1, 0};
    if (n <= 128) {
        for (size_t i = (n - 1) / 32 + 1; i-- > 0;)
            mix(acc, from + 16 * i, from + n - 16 * (i + 1), SECRET + 32 * i);
    } else {
        for (size_t i = 0; i < n / 32; i++) {
            if (i == 4) acc[0] = avalanche(acc[0]), acc[1] = avalanche(acc[1]);
            mix(acc, from + 32 * i, from + 32 * i + 16, i < 4 ? SECRET + 32 * i : SECRET + 3 + 32 * (i - 4));
        }
        if (n / 32 == 4) acc[0] = avalanche(acc[0]), acc[1] = avalanche(acc[1]);
        mix(acc, from + n - 16, from + n - 32, SECRET + 103);
    }
    uint64_t low = avalanche(acc[0] + acc[1]);
    write_hex(0 - avalanche(acc[0] * P64_1 + acc[1] * P64_4 + n * P64_2), low, hex);
}
