/* SHA-256 of many small files, two at a time.
 *
 * With the processor's SHA instructions one file after the other waits for each round's result; the rounds of a second file fit
 * between them. Processors without these instructions leave hashing to hashlib.
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

/* One file: the state as the instructions want it (the words A, B, E, F and C, D, G, H), and the blocks that are left of its content. */
typedef struct {
    __m128i abef, cdgh;
    const uint8_t *at;
    size_t blocks, end_blocks, number;
    uint8_t end[128]; /* what fills no block, with the padding */
} Hashed;

SHA static void begin_hash(Hashed *file, const uint8_t *data, size_t size, size_t number) {
    size_t left = size % 64;
    *file = (Hashed){_mm_set_epi32(0x6a09e667, (int)0xbb67ae85, 0x510e527f, (int)0x9b05688c),
                     _mm_set_epi32(0x3c6ef372, (int)0xa54ff53a, 0x1f83d9ab, 0x5be0cd19), data, size / 64, left < 56 ? 1 : 2, number, {0}};
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
    for (int f = 0; f < count; f++) abef[f] = files[f]->abef, cdgh[f] = files[f]->cdgh;
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
        files[f]->abef = abef[f], files[f]->cdgh = cdgh[f];
        files[f]->at += 64 * blocks, files[f]->blocks -= blocks;
    }
}

SHA static void add_to_one(Hashed *const *files, size_t blocks) { add_blocks(files, 1, blocks); }
SHA static void add_to_two(Hashed *const *files, size_t blocks) { add_blocks(files, 2, blocks); }

SHA static void write_digest(const Hashed *file, uint64_t *digest) {
    const __m128i abcd = _mm_unpackhi_epi64(file->cdgh, file->abef), efgh = _mm_unpacklo_epi64(file->cdgh, file->abef);
    digest[0] = (uint64_t)_mm_extract_epi64(abcd, 1), digest[1] = (uint64_t)_mm_extract_epi64(abcd, 0);
    digest[2] = (uint64_t)_mm_extract_epi64(efgh, 1), digest[3] = (uint64_t)_mm_extract_epi64(efgh, 0);
}

/* The digests of `count` files, four numbers each. */
SHA static void hash_files(const uint8_t *const *data, const size_t *sizes, size_t count, uint64_t *digests) {
    _mm256_zeroupper(); /* the SHA instructions keep the upper halves of registers, and wait for them where they hold something */
    Hashed places[2], *busy[2] = {places, places + 1};
    size_t begun = 0;
    for (int held = 0;;) {
        for (; held < 2 && begun < count; begun++) begin_hash(busy[held++], data[begun], sizes[begun], begun);
        if (!held) return;
        if (held == 1) add_to_one(busy, busy[0]->blocks);
        else add_to_two(busy, busy[0]->blocks < busy[1]->blocks ? busy[0]->blocks : busy[1]->blocks);
        for (int f = held - 1; f >= 0; f--) {
            Hashed *file = busy[f];
            if (file->blocks) continue;
            if (file->end_blocks) {
                file->at = file->end, file->blocks = file->end_blocks, file->end_blocks = 0;
                continue;
            }
            write_digest(file, digests + 4 * file->number);
            held--, busy[f] = busy[held], busy[held] = file;
        }
    }
}

/* Whether this processor has the SHA instructions; AVX comes with the loops of AVX2. */
static int has_sha(void) {
    unsigned a, b = 0, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}
#else
static void hash_files(const uint8_t *const *data, const size_t *sizes, size_t count, uint64_t *digests) {}
static int has_sha(void) { return 0; }
#endif
