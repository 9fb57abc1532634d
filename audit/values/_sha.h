/* SHA-256 of many small files: two at a time with the processor's SHA instructions, sixteen at a time with AVX-512.
 *
 * With the SHA instructions one file after the other waits for each round's result; the rounds of a second file fit between them.
 * With AVX-512 a register holds the same word of sixteen files: faster still where nearly all lanes have a file, and many times as
 * fast as hashlib on processors without SHA instructions. Processors with neither leave hashing to hashlib.
 */
#if HAVE_AVX2
#include <cpuid.h>
#define SHA __attribute__((target("sha,avx")))

static const uint32_t sha_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* One file: the words of its state, and the blocks that are left of its content. */
typedef struct {
    uint32_t state[8];
    const uint8_t *at;
    size_t blocks, end_blocks, number;
    uint8_t end[128]; /* what fills no block, with the padding */
} Hashed;

static void begin_hash(Hashed *file, const uint8_t *data, size_t size, size_t number) {
    size_t left = size % 64;
    *file = (Hashed){{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
                     data, size / 64, left < 56 ? 1 : 2, number, {0}};
    memcpy(file->end, data + size - left, left);
    file->end[left] = 0x80;
    for (int i = 0; i < 8; i++) file->end[64 * file->end_blocks - 1 - i] = (uint8_t)((uint64_t)size * 8 >> 8 * i);
}

/* Four rounds of each file, with four words of its message. */
SHA static inline __attribute__((always_inline)) void four_rounds(__m128i *abef, __m128i *cdgh, __m128i (*words)[4], int i, int group, int count) {
    const __m128i constants = _mm_loadu_si128((const __m128i *)(sha_constants + 4 * group));
    for (int f = 0; f < count; f++) {
        __m128i sum = _mm_add_epi32(words[f][i], constants);
        cdgh[f] = _mm_sha256rnds2_epu32(cdgh[f], abef[f], sum);
        abef[f] = _mm_sha256rnds2_epu32(abef[f], cdgh[f], _mm_shuffle_epi32(sum, 0x0e));
    }
}

/* As many blocks of one or of two files, which have them; `count` must be known to the compiler. */
SHA static inline __attribute__((always_inline)) void add_blocks(Hashed *const *files, const int count, size_t blocks) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i abef[2], cdgh[2], words[2][4];
    for (int f = 0; f < count; f++) { /* as the instructions want the state: the words A, B, E, F and C, D, G, H */
        const int *s = (const int *)files[f]->state;
        abef[f] = _mm_set_epi32(s[0], s[1], s[4], s[5]), cdgh[f] = _mm_set_epi32(s[2], s[3], s[6], s[7]);
    }
    for (size_t b = 0; b < blocks; b++) {
        __m128i abef_before[2], cdgh_before[2];
        for (int f = 0; f < count; f++) abef_before[f] = abef[f], cdgh_before[f] = cdgh[f];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            for (int f = 0; f < count; f++)
                words[f][i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(files[f]->at + 64 * b) + i), big_endian);
            four_rounds(abef, cdgh, words, i, i, count);
        }
#pragma GCC unroll 12
        for (int group = 4; group < 16; group++) {
            const int i = group & 3;
            for (int f = 0; f < count; f++) {
                __m128i *w = words[f], last = w[(i + 3) & 3];
                __m128i early = _mm_add_epi32(_mm_sha256msg1_epu32(w[i], w[(i + 1) & 3]), _mm_alignr_epi8(last, w[(i + 2) & 3], 4));
                w[i] = _mm_sha256msg2_epu32(early, last);
            }
            four_rounds(abef, cdgh, words, i, group, count);
        }
        for (int f = 0; f < count; f++) {
            abef[f] = _mm_add_epi32(abef[f], abef_before[f]);
            cdgh[f] = _mm_add_epi32(cdgh[f], cdgh_before[f]);
        }
    }
    for (int f = 0; f < count; f++) {
        uint32_t *s = files[f]->state, words_of[8];
        _mm_storeu_si128((__m128i *)words_of, abef[f]);
        _mm_storeu_si128((__m128i *)(words_of + 4), cdgh[f]);
        s[0] = words_of[3], s[1] = words_of[2], s[4] = words_of[1], s[5] = words_of[0];
        s[2] = words_of[7], s[3] = words_of[6], s[6] = words_of[5], s[7] = words_of[4];
    }
}

SHA static void add_to_one(Hashed *const *files, size_t blocks) { add_blocks(files, 1, blocks); }
SHA static void add_to_two(Hashed *const *files, size_t blocks) { add_blocks(files, 2, blocks); }

#define FILES 16
#define ROTATED(X, N) _mm512_ror_epi32(X, N)
#define PLUS(X, Y) _mm512_add_epi32(X, Y)
#define EITHER(X, Y, Z) _mm512_ternarylogic_epi32(X, Y, Z, 0x96)   /* X ^ Y ^ Z */
#define CHOSEN(X, Y, Z) _mm512_ternarylogic_epi32(X, Y, Z, 0xca)   /* Y where X, else Z */
#define MAJORITY(X, Y, Z) _mm512_ternarylogic_epi32(X, Y, Z, 0xe8)

/* Sixteen rows of sixteen words: columns become rows. */
AVX512 static inline __attribute__((always_inline)) void transpose(__m512i *w) {
    __m512i t[FILES];
    for (int i = 0; i < FILES; i += 2) t[i] = _mm512_unpacklo_epi32(w[i], w[i + 1]), t[i + 1] = _mm512_unpackhi_epi32(w[i], w[i + 1]);
    for (int i = 0; i < FILES; i += 4) {
        w[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]), w[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        w[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]), w[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        __m512i a = _mm512_shuffle_i32x4(w[i], w[i + 4], 0x88), b = _mm512_shuffle_i32x4(w[i + 8], w[i + 12], 0x88);
        __m512i c = _mm512_shuffle_i32x4(w[i], w[i + 4], 0xdd), d = _mm512_shuffle_i32x4(w[i + 8], w[i + 12], 0xdd);
        t[i] = _mm512_shuffle_i32x4(a, b, 0x88), t[i + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
        t[i + 4] = _mm512_shuffle_i32x4(c, d, 0x88), t[i + 12] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
    memcpy(w, t, sizeof t);
}

#define HASHED_AHEAD 512 /* bytes: what comes from a slower cache arrives while others are hashed */

/* As many blocks of up to sixteen files, which have them. */
AVX512 static void add_to_many(Hashed *const *files, int count, size_t blocks) {
    const __m512i big_endian = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
    uint32_t words_of[8][FILES];
    const uint8_t *at[FILES];
    __m512i s[8];
    for (int f = 0; f < FILES; f++) { /* lanes without a file repeat the first one, and nobody looks at them */
        const Hashed *file = files[f < count ? f : 0];
        at[f] = file->at;
        for (int i = 0; i < 8; i++) words_of[i][f] = file->state[i];
    }
    for (int i = 0; i < 8; i++) s[i] = _mm512_loadu_si512(words_of[i]);
    for (size_t n = 0; n < blocks; n++) {
        __m512i w[FILES], a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
#pragma GCC unroll 16
        for (int i = 0; i < FILES; i++) {
            _mm_prefetch((const char *)at[i] + 64 * n + HASHED_AHEAD, _MM_HINT_T0);
            w[i] = _mm512_shuffle_epi8(_mm512_loadu_si512(at[i] + 64 * n), big_endian);
        }
        transpose(w);
#pragma GCC unroll 64
        for (int r = 0; r < 64; r++) {
            if (r >= 16) {
                __m512i x = w[(r + 1) & 15], y = w[(r + 14) & 15];
                x = EITHER(ROTATED(x, 7), ROTATED(x, 18), _mm512_srli_epi32(x, 3));
                y = EITHER(ROTATED(y, 17), ROTATED(y, 19), _mm512_srli_epi32(y, 10));
                w[r & 15] = PLUS(PLUS(w[r & 15], x), PLUS(w[(r + 9) & 15], y));
            }
            __m512i one = PLUS(h, PLUS(w[r & 15], _mm512_set1_epi32((int)sha_constants[r])));
            one = PLUS(one, PLUS(EITHER(ROTATED(e, 6), ROTATED(e, 11), ROTATED(e, 25)), CHOSEN(e, f, g)));
            __m512i two = PLUS(EITHER(ROTATED(a, 2), ROTATED(a, 13), ROTATED(a, 22)), MAJORITY(a, b, c));
            h = g, g = f, f = e, e = PLUS(d, one), d = c, c = b, b = a, a = PLUS(one, two);
        }
        s[0] = PLUS(s[0], a), s[1] = PLUS(s[1], b), s[2] = PLUS(s[2], c), s[3] = PLUS(s[3], d);
        s[4] = PLUS(s[4], e), s[5] = PLUS(s[5], f), s[6] = PLUS(s[6], g), s[7] = PLUS(s[7], h);
    }
    for (int i = 0; i < 8; i++) _mm512_storeu_si512(words_of[i], s[i]);
    for (int f = 0; f < count; f++)
        for (int i = 0; i < 8; i++) files[f]->state[i] = words_of[i][f];
    _mm256_zeroupper(); /* the SHA instructions keep the upper halves of registers, and wait for them where they hold something */
}

/* From so many files on all are hashed at once, although two at a time have instructions of their own. */
#define MANY 11

/* The digests of `count` files, four numbers each, with so many lanes. */
static void hash_files(const uint8_t *const *data, const size_t *sizes, size_t count, int lanes, int is_sha, uint64_t *digests) {
    Hashed places[FILES], *busy[FILES];
    size_t begun = 0;
    for (int f = 0; f < lanes; f++) busy[f] = places + f;
    for (int held = 0;;) {
        for (; held < lanes && begun < count; begun++) begin_hash(busy[held++], data[begun], sizes[begun], begun);
        if (!held) return;
        int used = is_sha && held < MANY && held > 2 ? 2 : held;
        size_t blocks = busy[0]->blocks;
        for (int f = 1; f < used; f++) blocks = busy[f]->blocks < blocks ? busy[f]->blocks : blocks;
        if (used > 2 || !is_sha) add_to_many(busy, used, blocks);
        else if (used == 2) add_to_two(busy, blocks);
        else add_to_one(busy, blocks);
        for (int f = used - 1; f >= 0; f--) {
            Hashed *file = busy[f];
            file->at += 64 * blocks, file->blocks -= blocks;
            if (file->blocks) continue;
            if (file->end_blocks) {
                file->at = file->end, file->blocks = file->end_blocks, file->end_blocks = 0;
                continue;
            }
            for (int i = 0; i < 4; i++) digests[4 * file->number + i] = (uint64_t)file->state[2 * i] << 32 | file->state[2 * i + 1];
            held--, busy[f] = busy[held], busy[held] = file;
        }
    }
}

/* Whether this processor has the SHA instructions; AVX comes with the loops of AVX2. */
static int has_sha(void) {
    unsigned a, b = 0, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}

/* Whether this processor can hash many at a time: more of them can than have all that the widest loops need. */
static int has_many(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}
#else
enum { FILES = 1 };
static void hash_files(const uint8_t *const *data, const size_t *sizes, size_t count, int lanes, int is_sha, uint64_t *digests) {}
static int has_sha(void) { return 0; }
static int has_many(void) { return 0; }
#endif
