/* Small PNGs, rows of pixels in as few bits as they need, and floats as a table over a picture. No Python in here. */

/* ---- PNG --------------------------------------------------------------------------------------------------- */

static uint32_t crc_tables[8][256]; /* filled when the module is loaded, and only read afterwards */

static void fill_crc_tables(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        crc_tables[0][n] = c;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int t = 1; t < 8; t++)
            crc_tables[t][n] = crc_tables[0][crc_tables[t - 1][n] & 255] ^ (crc_tables[t - 1][n] >> 8);
}

/* Continue a CRC-32 whose bits are not inverted yet. */
static uint32_t crc_plain(const uint8_t *p, size_t n, uint32_t c) {
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t w = word_at(p) ^ c;
        c = crc_tables[7][w & 255] ^ crc_tables[6][(w >> 8) & 255] ^ crc_tables[5][(w >> 16) & 255] ^
            crc_tables[4][(w >> 24) & 255] ^ crc_tables[3][(w >> 32) & 255] ^ crc_tables[2][(w >> 40) & 255] ^
            crc_tables[1][(w >> 48) & 255] ^ crc_tables[0][w >> 56];
    }
    while (n--) c = crc_tables[0][(c ^ *p++) & 255] ^ (c >> 8);
    return c;
}

#if HAVE_AVX2
#define CARRYLESS __attribute__((target("avx2,pclmul")))

/* What a sum of 16 bytes is worth further on: `by` holds the remainders of the two powers of x that its halves move by. */
CARRYLESS static inline __m128i moved_on(__m128i sum, __m128i by) {
    return _mm_xor_si128(_mm_clmulepi64_si128(sum, by, 0x00), _mm_clmulepi64_si128(sum, by, 0x11));
}

/* The same, 64 bytes at a time: products without carries add up what lies 64 bytes, then 16 bytes apart, and the tables do the rest. */
CARRYLESS static uint32_t crc_avx2(const uint8_t *p, size_t n, uint32_t c) {
    const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i sums[4];
    uint8_t last[16];
    if (n < 128) return crc_plain(p, n, c);
    for (int k = 0; k < 4; k++) sums[k] = _mm_loadu_si128((const __m128i *)(p + 16 * k));
    sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128((int)c));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
        for (int k = 0; k < 4; k++)
            sums[k] = _mm_xor_si128(moved_on(sums[k], by_64), _mm_loadu_si128((const __m128i *)(p + 16 * k)));
    for (int k = 0; k < 3; k++) sums[k + 1] = _mm_xor_si128(sums[k + 1], moved_on(sums[k], by_16));
    _mm_storeu_si128((__m128i *)last, sums[3]);
    return crc_plain(p, n, crc_plain(last, 16, 0));
}
#endif

#define ADLER_MOST 5552 /* bytes whose sums fit in 32 bits */

/* Adler-32. */
BODY uint32_t adler(const uint8_t *p, size_t n) {
    uint64_t a = 1, b = 0;
    while (n) {
        uint32_t some = n < ADLER_MOST ? (uint32_t)n : ADLER_MOST, sum = 0, weighted = 0;
        for (uint32_t i = 0; i < some; i++) {
            sum += p[i];
            weighted += (some - i) * p[i];
        }
        b = (b + some * a + weighted) % 65521;
        a = (a + sum) % 65521;
        p += some, n -= some;
    }
    return (uint32_t)(b << 16 | a);
}

/* Three planes of bytes as pixels of three. */
BODY void interleave(const uint8_t *restrict planes, size_t n, uint8_t *restrict out) {
    for (size_t i = 0; i < n; i++) {
        out[3 * i] = planes[i];
        out[3 * i + 1] = planes[n + i];
        out[3 * i + 2] = planes[2 * n + i];
    }
}

/* How the two checksums of a PNG are computed. */
typedef struct {
    uint32_t (*crc)(const uint8_t *, size_t, uint32_t), (*adler)(const uint8_t *, size_t);
} Checksums;

static uint8_t *put_number(uint8_t *to, uint32_t v) {
    for (int shift = 24; shift >= 0; shift -= 8) *to++ = (uint8_t)(v >> shift);
    return to;
}

/* The chunk's data lie at `to` + 8 already; the place behind the chunk. */
static uint8_t *end_chunk(uint8_t *to, const char *name, size_t size, Checksums with) {
    put_number(to, (uint32_t)size);
    memcpy(to + 4, name, 4);
    return put_number(to + 8 + size, ~with.crc(to + 4, size + 4, 0xFFFFFFFFu));
}

#define PNG_FRAME (8 + 25 + 12 + 11 + 12) /* all but the lines */

/* Eight bits a band, uncompressed: one stored block, so that the lines have at most 65,535 bytes. */
static size_t write_png(const uint8_t *pixels, size_t height, size_t width, size_t bands, Checksums with, uint8_t *out) {
    static const uint8_t begin[8] = {0x89, 'P', 'N', 'G', 13, 10, 26, 10};
    size_t line = width * bands, size = height * (line + 1);
    uint8_t *at = out, *data;
    memcpy(at, begin, 8);
    at += 8;
    put_number(put_number(at + 8, (uint32_t)width), (uint32_t)height);
    memcpy(at + 16, (const uint8_t[5]){8, bands == 1 ? 0 : 2, 0, 0, 0}, 5);
    at = end_chunk(at, "IHDR", 13, with);
    data = at + 8;
    memcpy(data, (const uint8_t[3]){0x78, 0x01, 0x01}, 3);
    data[3] = (uint8_t)size, data[4] = (uint8_t)(size >> 8);
    data[5] = (uint8_t)~size, data[6] = (uint8_t)(~size >> 8);
    data += 7;
    for (size_t y = 0; y < height; y++, data += line) {
        *data++ = 0; /* the line's filter: none */
        memcpy(data, pixels + y * line, line);
    }
    put_number(data, with.adler(data - size, size));
    at = end_chunk(at, "IDAT", size + 11, with);
    return (size_t)(end_chunk(at, "IEND", 0, with) - out);
}

/* ---- as few bits as needed --------------------------------------------------------------------------------- */

#define BITS_BLOCK 32

/* The place of the lowest bit that is set, and how many bits a number has. */
#if defined(__GNUC__)
static inline int lowest_bit(uint64_t v) { return __builtin_ctzll(v); }
static inline int bits_of(uint32_t v) { return v ? 32 - __builtin_clz(v) : 0; }
#else
static inline int lowest_bit(uint64_t v) {
    int n = 0;
    while (!(v >> n & 1)) n++;
    return n;
}
static inline int bits_of(uint32_t v) {
    int n = 0;
    while (v >> n) n++;
    return n;
}
#endif

/* The low `width` bits of eight bytes, one behind the other. */
static uint64_t packed_bits(uint64_t eight, int width) {
    uint64_t out = 0, mask = (1u << width) - 1;
    for (int i = 0; i < 8; i++) out |= ((eight >> (8 * i)) & mask) << (width * i);
    return out;
}

#if HAVE_AVX2
#define BMI2 __attribute__((target("avx2,bmi2")))
BMI2 static inline uint64_t packed_bits_bmi2(uint64_t eight, int width) {
    return _pext_u64(eight, 0x0101010101010101u * ((1u << width) - 1));
}
#endif

typedef uint64_t (*PackedBits)(uint64_t, int);

BODY uint8_t *put_bits(const uint8_t *z, int width, PackedBits packed, uint8_t *to) {
    for (int g = 0; g < BITS_BLOCK; g += 8, to += width) {
        uint64_t bits = packed(word_at(z + g), width);
        for (int i = 0; i < 8; i++) to[i] = (uint8_t)(bits >> (8 * i)); /* what is too much is overwritten */
    }
    return to;
}

/* Pixels of four bytes as planes G, R-G, B-G, each byte minus the one in the row above, sign in the last bit, in blocks of
 * 32 with as many bits as the largest needs. First the widths of all blocks, then the bits; the length of both.
 * `lines` has room for seven lines of whole blocks; `out` for all widths, as many bytes as there are residuals, and 8. */
BODY size_t rgb_bits(const uint8_t *restrict src, size_t height, size_t width, PackedBits packed, uint8_t *restrict lines,
                     uint8_t *restrict out) {
    size_t blocks = (width + BITS_BLOCK - 1) / BITS_BLOCK, line = blocks * BITS_BLOCK;
    uint8_t *widths = out, *bits = out + 3 * height * blocks;
    uint8_t *now = lines, *above = lines + 3 * line, *z = lines + 6 * line;
    memset(lines, 0, 7 * line);
    for (size_t y = 0; y < height; y++, src += 4 * width) {
        uint8_t *g = now, *r = now + line, *b = now + 2 * line;
        for (size_t x = 0; x < width; x++) {
            uint8_t green = src[4 * x + 1];
            g[x] = green;
            r[x] = (uint8_t)(src[4 * x] - green);
            b[x] = (uint8_t)(src[4 * x + 2] - green);
        }
        for (int plane = 0; plane < 3; plane++) {
            const uint8_t *p = now + plane * line, *q = above + plane * line;
            for (size_t x = 0; x < line; x++) {
                uint8_t d = (uint8_t)(p[x] - q[x]);
                z[x] = (uint8_t)((d << 1) ^ (d & 128 ? 255 : 0));
            }
            for (size_t at = 0; at < line; at += BITS_BLOCK) {
                uint8_t any = 0;
                for (int i = 0; i < BITS_BLOCK; i++) any |= z[at + i];
                int wide = bits_of(any);
                *widths++ = (uint8_t)wide;
                if (wide) bits = put_bits(z + at, wide, packed, bits);
            }
        }
        uint8_t *swap = now;
        now = above;
        above = swap;
    }
    return (size_t)(bits - out);
}

static size_t rgb_bits_plain(const uint8_t *s, size_t h, size_t w, uint8_t *l, uint8_t *o) {
    return rgb_bits(s, h, w, packed_bits, l, o);
}

#if HAVE_AVX2
BMI2 static size_t rgb_bits_avx2(
    const uint8_t *s, size_t h, size_t w, uint8_t *l, uint8_t *o) {
    return rgb_bits(s, h, w, packed_bits_bmi2, l, o);
}
#endif

/* The eight bytes whose low `width` bits lie one behind the other. */
static uint64_t unpacked_bits(uint64_t packed, int width) {
    uint64_t out = 0, mask = (1u << width) - 1;
    for (int i = 0; i < 8; i++) out |= ((packed >> (width * i)) & mask) << (8 * i);
    return out;
}

#if HAVE_AVX2
BMI2 static inline uint64_t unpacked_bits_bmi2(uint64_t packed, int width) {
    return _pdep_u64(packed, 0x0101010101010101u * ((1u << width) - 1));
}
#endif

/* The pixels that `rgb_bits` packed, three bytes each. `widths` are at most 8, and `bits` are as long as they say;
 * `lines` has room for four lines of whole blocks. */
BODY void rgb_unbits(const uint8_t *restrict widths, const uint8_t *restrict bits, size_t height, size_t width,
                     PackedBits unpacked, uint8_t *restrict lines, uint8_t *restrict out) {
    size_t blocks = (width + BITS_BLOCK - 1) / BITS_BLOCK, line = blocks * BITS_BLOCK;
    uint8_t *z = lines + 3 * line;
    memset(lines, 0, 4 * line);
    for (size_t y = 0; y < height; y++, out += 3 * width) {
        for (int plane = 0; plane < 3; plane++) {
            for (size_t at = 0; at < line; at += BITS_BLOCK) {
                int wide = *widths++;
                for (int g = 0; g < BITS_BLOCK; g += 8, bits += wide) {
                    uint64_t packed = 0;
                    for (int i = 0; i < wide; i++) packed |= (uint64_t)bits[i] << (8 * i);
                    uint64_t eight = unpacked(packed, wide);
                    for (int i = 0; i < 8; i++) z[at + g + i] = (uint8_t)(eight >> (8 * i));
                }
            }
            uint8_t *p = lines + plane * line;
            for (size_t x = 0; x < line; x++) p[x] = (uint8_t)(p[x] + ((z[x] >> 1) ^ (z[x] & 1 ? 255 : 0)));
        }
        const uint8_t *g = lines, *r = lines + line, *b = lines + 2 * line;
        for (size_t x = 0; x < width; x++) {
            out[3 * x] = (uint8_t)(r[x] + g[x]);
            out[3 * x + 1] = g[x];
            out[3 * x + 2] = (uint8_t)(b[x] + g[x]);
        }
    }
}

static void rgb_unbits_plain(const uint8_t *n, const uint8_t *s, size_t h, size_t w, uint8_t *l, uint8_t *o) {
    rgb_unbits(n, s, h, w, unpacked_bits, l, o);
}

#if HAVE_AVX2
BMI2 static void rgb_unbits_avx2(const uint8_t *n, const uint8_t *s, size_t h, size_t w, uint8_t *l, uint8_t *o) {
    rgb_unbits(n, s, h, w, unpacked_bits_bmi2, l, o);
}
#endif

/* ---- functions of a picture -------------------------------------------------------------------------------- */

/* Whether each float of a plane follows from one byte of the pixel in its place; `table` has what each byte stands for, as
 * bits, and EMPTY where it does not occur. */
static int table_of_plain(const uint8_t *src, const uint8_t *plane, size_t n, int band, uint32_t *table) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits, *entry = table + src[4 * i + band];
        memcpy(&bits, plane + 4 * i, 4);
        if (*entry == bits && bits != EMPTY) continue;
        if (*entry != EMPTY || bits == EMPTY) return 0;
        *entry = bits;
    }
    return 1;
}

#if HAVE_AVX2
#define TABLE_BEGINS 1024 /* pixels after which most bytes are known */

AVX2 static int table_of_avx2(const uint8_t *src, const uint8_t *plane, size_t n, int band, uint32_t *table) {
    const __m256i byte = _mm256_set1_epi32(255);
    const __m128i shift = _mm_cvtsi32_si128(8 * band);
    size_t begin = n < TABLE_BEGINS ? n : TABLE_BEGINS, i = 0;
    /* Written first and compared afterwards: a processor waits where it reads what it is about to have written. */
    for (size_t k = 0; k < begin; k++) memcpy(table + src[4 * k + band], plane + 4 * k, 4);
    for (; i + 8 <= n; i += 8) {
        __m256i pixels = _mm256_loadu_si256((const __m256i *)(src + 4 * i));
        __m256i places = _mm256_and_si256(_mm256_srl_epi32(pixels, shift), byte);
        __m256i known = _mm256_i32gather_epi32((const int *)table, places, 4);
        __m256i found = _mm256_loadu_si256((const __m256i *)(plane + 4 * i));
        __m256i none = _mm256_cmpeq_epi32(found, _mm256_set1_epi32(-1));
        __m256i same = _mm256_andnot_si256(none, _mm256_cmpeq_epi32(known, found));
        if (_mm256_movemask_epi8(same) != -1 && !table_of_plain(src + 4 * i, plane + 4 * i, 8, band, table)) return 0;
    }
    return table_of_plain(src + 4 * i, plane + 4 * i, n - i, band, table);
}
#endif

/* Whether three planes of floats are the bytes of the pixels in their places, each divided by 255. */
BODY int is_unit(const uint8_t *src, const uint8_t *planes, size_t n) {
    for (size_t at = 0; at < n; at += STRETCH) {
        size_t some = upto(n, at, STRETCH);
        uint32_t wrong = 0;
        for (int band = 0; band < 3; band++)
            for (size_t i = at; i < at + some; i++) {
                uint32_t pixel, bits, expected;
                memcpy(&pixel, src + 4 * i, 4);
                memcpy(&bits, planes + 4 * ((size_t)band * n + i), 4);
                float share = (float)(int32_t)((pixel >> (8 * band)) & 255) / 255.0f;
                memcpy(&expected, &share, 4);
                wrong |= bits ^ expected;
            }
        if (wrong) return 0;
    }
    return 1;
}

/* Whether pixels of four bytes equal others, whatever their fourth bytes are. */
BODY int same_pixels(const uint8_t *a, const uint8_t *b, size_t pixels) {
    uint32_t wrong = 0;
    for (size_t i = 0; i < pixels; i++) {
        uint32_t x, y;
        memcpy(&x, a + 4 * i, 4);
        memcpy(&y, b + 4 * i, 4);
        wrong |= x ^ y;
    }
    return !(wrong & 0x00FFFFFFu);
}

/* Copy pixels of four bytes with the fourth set to 255. */
BODY void pad_pixels(const uint8_t *restrict src, size_t pixels, uint8_t *restrict out) {
    for (size_t i = 0; i < pixels; i++) {
        uint32_t x;
        memcpy(&x, src + 4 * i, 4);
        x |= 0xFF000000u;
        memcpy(out + 4 * i, &x, 4);
    }
}
