/* The JPEG of a small picture, after a head that Pillow wrote: its tables and its quality are Pillow's. No Python in here.
 *
 * Pillow's encoder is made for large pictures, and takes twice as long for a small one. Baseline, eight bits, grey, or colour with chroma halved in both
 * directions; for every other head there is no JPEG.
 */

#define JPEG_SIDE 128                    /* the greatest height and width */
#define JPEG_LINE (JPEG_SIDE + 16)       /* a line of whole blocks, and room for whole vectors */
#define JPEG_BLOCK 512                   /* bytes that a block never fills: 64 codes of 27 bits, each byte doubled */

typedef struct {
    uint16_t codes[256];
    uint8_t lengths[256]; /* 0 where a symbol has no code */
} Codes;

typedef struct {
    Codes codes[2][2];   /* DC and AC; of luma and chroma */
    float shares[2][64]; /* what a coefficient is multiplied by; first the frequency across, then down */
    uint8_t *sides;      /* where the head has the picture's height and width */
    int bands;
} JpegTables;

/* The order of coefficients in a JPEG, where each is 8 times its frequency across and its frequency down; and the place of each. */
static const uint8_t TURNED[64] = {
    0,  8,  1,  2,  9,  16, 24, 17, 10, 3,  4,  11, 18, 25, 32, 40, 33, 26, 19, 12, 5,  6,  13, 20, 27, 34, 41, 48, 56, 49, 42, 35,
    28, 21, 14, 7,  15, 22, 29, 36, 43, 50, 57, 58, 51, 44, 37, 30, 23, 31, 38, 45, 52, 59, 60, 53, 46, 39, 47, 54, 61, 62, 55, 63,
};
static const uint8_t PLACES[64] = {
    0,  2,  3,  9,  10, 20, 21, 35, 1,  4,  8,  11, 19, 22, 34, 36, 5,  7,  12, 18, 23, 33, 37, 48, 6,  13, 17, 24, 32, 38, 47, 49,
    14, 16, 25, 31, 39, 46, 50, 57, 15, 26, 30, 40, 45, 51, 56, 58, 27, 29, 41, 44, 52, 55, 59, 62, 28, 42, 43, 53, 54, 60, 61, 63,
};
/* By how much `cosines` leaves its results too large, in one direction. */
static const float COSINE_SCALES[8] = {1.0f,         1.387039845f, 1.306562965f, 1.175875602f,
                                       1.0f,         0.785694958f, 0.541196100f, 0.275899379f};

/* ---- the head ---------------------------------------------------------------------------------------------- */

static int read_steps(const uint8_t *at, size_t size, JpegTables *t) {
    for (; size >= 65; at += 65, size -= 65) {
        if (at[0] > 1) return 0;
        for (int k = 0; k < 64; k++) {
            int place = TURNED[k];
            if (!at[1 + k]) return 0;
            t->shares[at[0]][place] = 1.0f / (8.0f * at[1 + k] * COSINE_SCALES[place / 8] * COSINE_SCALES[place % 8]);
        }
    }
    return size == 0;
}

static int read_codes(const uint8_t *at, size_t size, JpegTables *t) {
    while (size >= 17) {
        size_t count = 0;
        for (int n = 1; n <= 16; n++) count += at[n];
        if ((at[0] & ~0x11) || count > 256 || size < 17 + count) return 0;
        Codes *codes = &t->codes[at[0] >> 4][at[0] & 1];
        const uint8_t *symbol = at + 17;
        unsigned code = 0;
        for (int n = 1; n <= 16; n++, code <<= 1)
            for (int k = 0; k < at[n]; k++, symbol++) codes->codes[*symbol] = (uint16_t)code++, codes->lengths[*symbol] = (uint8_t)n;
        at += 17 + count, size -= 17 + count;
    }
    return size == 0;
}

/* Baseline with one band, or three of which the first has twice the lines and columns and the others share their tables. */
static int read_frame(uint8_t *at, size_t size, JpegTables *t) {
    if (size < 9 || at[0] != 8 || size != 6 + 3 * (size_t)at[5]) return 0;
    t->sides = at + 1, t->bands = at[5];
    if (t->bands == 1) return at[8] == 0;
    return t->bands == 3 && at[7] == 0x22 && at[8] == 0 && at[10] == 0x11 && at[11] == 1 && at[13] == 0x11 && at[14] == 1;
}

static int read_scan(const uint8_t *at, size_t size, const JpegTables *t) {
    if (size != 4 + 2 * (size_t)t->bands || at[0] != t->bands) return 0;
    return at[2] == 0 && (t->bands == 1 || (at[4] == 0x11 && at[6] == 0x11));
}

/* The tables of a head, from its first byte to the last before the data; 0 where it is another kind of JPEG. */
static int read_head(uint8_t *head, size_t size, JpegTables *t) {
    memset(t, 0, sizeof *t);
    for (size_t at = 2; at + 4 <= size;) {
        size_t length = (size_t)head[at + 2] << 8 | head[at + 3];
        uint8_t *data = head + at + 4, mark = head[at + 1];
        if (head[at] != 0xFF || length < 2 || at + 2 + length > size) return 0;
        if (mark == 0xDA) return t->sides && at + 2 + length == size && read_scan(data, length - 2, t);
        if (mark == 0xDB ? !read_steps(data, length - 2, t)
            : mark == 0xC4 ? !read_codes(data, length - 2, t)
            : mark == 0xC0 ? !read_frame(data, length - 2, t) : (mark & 0xF0) != 0xE0)
            return 0;
        at += 2 + length;
    }
    return 0;
}

/* ---- the data ---------------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *at;
    uint64_t bits;
    int count, good;
} BitWriter;

static inline void put_byte(BitWriter *w, uint8_t byte) {
    *w->at++ = byte;
    if (byte == 0xFF) *w->at++ = 0;
}

static inline void put_code(BitWriter *w, uint64_t bits, int count) {
    w->bits = w->bits << count | bits, w->count += count;
    if (w->count < 32) return;
    w->count -= 32;
    uint32_t word = (uint32_t)(w->bits >> w->count);
    if (word & 0x80808080u & ~(word + 0x01010101u)) { /* a byte may be 255 */
        for (int shift = 24; shift >= 0; shift -= 8) put_byte(w, (uint8_t)(word >> shift));
        return;
    }
    w->at = put_number(w->at, word);
}

/* A symbol of so many zeros and the length of a number, and the number. */
static inline void put_symbol(BitWriter *w, const Codes *codes, int zeros, int number) {
    uint32_t size = (uint32_t)(number < 0 ? -number : number);
    int length = bits_of(size), symbol = zeros << 4 | length;
    w->good &= codes->lengths[symbol] != 0;
    uint64_t low = (uint64_t)(number < 0 ? number - 1 : number) & ((1u << length) - 1);
    put_code(w, (uint64_t)codes->codes[symbol] << length | low, codes->lengths[symbol] + length);
}

/* Which numbers of a block are not 0, one bit each. */
static uint64_t nonzero_plain(const int16_t *quantised) {
    uint64_t found = 0;
    for (int k = 0; k < 64; k++) found |= (uint64_t)(quantised[k] != 0) << k;
    return found;
}

#if HAVE_AVX2
AVX2 static inline uint64_t nonzero_avx2(const int16_t *quantised) {
    const __m256i none = _mm256_setzero_si256(), *from = (const __m256i *)quantised;
    uint64_t zeros = 0;
    for (int k = 0; k < 2; k++) {
        __m256i a = _mm256_cmpeq_epi16(_mm256_loadu_si256(from + 2 * k), none);
        __m256i b = _mm256_cmpeq_epi16(_mm256_loadu_si256(from + 2 * k + 1), none);
        __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xD8);
        zeros |= (uint64_t)(uint32_t)_mm256_movemask_epi8(bytes) << (32 * k);
    }
    return ~zeros;
}
#endif

typedef uint64_t (*Nonzero)(const int16_t *);

/* Only the numbers that are not 0 are visited: first to put them into their order, then to write them. */
BODY void put_block(
    BitWriter *w, const int16_t *quantised, const JpegTables *t, int table, Nonzero nonzero, int *before) {
    const Codes *ac = &t->codes[1][table];
    put_symbol(w, &t->codes[0][table], 0, quantised[0] - *before);
    *before = quantised[0];
    uint64_t left = 0;
    for (uint64_t found = nonzero(quantised) & ~1ull; found; found &= found - 1) left |= 1ull << PLACES[lowest_bit(found)];
    int last = 0;
    for (; left; left &= left - 1) {
        int place = lowest_bit(left), zeros = place - last - 1;
        for (; zeros > 15; zeros -= 16) put_code(w, ac->codes[0xF0], ac->lengths[0xF0]);
        put_symbol(w, ac, zeros, quantised[TURNED[place]]);
        last = place;
    }
    if (last < 63) put_code(w, ac->codes[0], ac->lengths[0]);
}

/* Eight numbers of each of `n` columns as cosines, each too large by its scale (Arai, Agui and Nakajima). */
BODY void cosines(float *restrict v, size_t n, size_t line) {
    for (size_t i = 0; i < n; i++) {
        float *c = v + i;
        float a0 = c[0] + c[7 * line], d0 = c[0] - c[7 * line], a1 = c[line] + c[6 * line], d1 = c[line] - c[6 * line];
        float a2 = c[2 * line] + c[5 * line], d2 = c[2 * line] - c[5 * line];
        float a3 = c[3 * line] + c[4 * line], d3 = c[3 * line] - c[4 * line];
        float s0 = a0 + a3, t0 = a0 - a3, s1 = a1 + a2, t1 = a1 - a2, turned = (t1 + t0) * 0.707106781f;
        c[0] = s0 + s1, c[4 * line] = s0 - s1;
        c[2 * line] = t0 + turned, c[6 * line] = t0 - turned;
        float e0 = d3 + d2, e1 = d2 + d1, e2 = d1 + d0, both = (e0 - e2) * 0.382683433f;
        float low = 0.541196100f * e0 + both, high = 1.306562965f * e2 + both, middle = e1 * 0.707106781f;
        float sum = d0 + middle, rest = d0 - middle;
        c[5 * line] = rest + low, c[3 * line] = rest - low;
        c[line] = sum + high, c[7 * line] = sum - high;
    }
}

/* A block whose columns are cosines already, as whole numbers. */
BODY void quantise(const float *restrict from, const float *restrict shares, int16_t *restrict out) {
    float turned[64];
    for (int y = 0; y < 8; y++)
        for (int x = 0; x < 8; x++) turned[8 * x + y] = from[y * JPEG_LINE + x];
    cosines(turned, 8, 8);
    for (int k = 0; k < 64; k++) {
        float v = turned[k] * shares[k];
        out[k] = (int16_t)(int32_t)(v + (v < 0 ? -0.5f : 0.5f));
    }
}

/* Planes of sixteen lines (of which a half are used for chroma and grey), and the lines that they are made of. */
typedef struct {
    float planes[3][16 * JPEG_LINE], sums[3][JPEG_LINE];
} JpegStrip;

/* One line of a picture as luma, and its colours added to `sums`; both as wide as whole blocks. */
BODY void colour_line(const uint8_t *restrict src, size_t width, size_t whole, float *restrict luma, JpegStrip *s) {
    float colours[3][JPEG_LINE];
    for (size_t x = 0; x < width; x++)
        for (int b = 0; b < 3; b++) colours[b][x] = src[3 * x + b];
    for (size_t x = width; x < whole; x++)
        for (int b = 0; b < 3; b++) colours[b][x] = colours[b][width - 1];
    for (size_t x = 0; x < whole; x++)
        luma[x] = 0.299f * colours[0][x] + 0.587f * colours[1][x] + 0.114f * colours[2][x] - 128.0f;
    for (int b = 0; b < 3; b++)
        for (size_t x = 0; x < whole; x++) s->sums[b][x] += colours[b][x];
}

/* Chroma of two lines. */
BODY void chroma_line(JpegStrip *s, size_t half, size_t line) {
    float means[3][JPEG_LINE / 2];
    for (int b = 0; b < 3; b++)
        for (size_t x = 0; x < half; x++) means[b][x] = (s->sums[b][2 * x] + s->sums[b][2 * x + 1]) * 0.25f;
    for (size_t x = 0; x < half; x++) {
        float luma = 0.299f * means[0][x] + 0.587f * means[1][x] + 0.114f * means[2][x];
        s->planes[1][line * JPEG_LINE + x] = (means[2][x] - luma) * 0.564334086f;
        s->planes[2][line * JPEG_LINE + x] = (means[0][x] - luma) * 0.713266762f;
    }
    memset(s->sums, 0, sizeof s->sums);
}

BODY void jpeg_strip(const uint8_t *src, size_t height, size_t width, const JpegTables *t, JpegStrip *s, Nonzero nonzero, int *before,
                     BitWriter *w) {
    size_t tall = t->bands == 3 ? 16 : 8, whole = (width + tall - 1) / tall * tall;
    int16_t block[64];
    for (size_t y = 0; y < tall; y++) {
        const uint8_t *line = src + (y < height ? y : height - 1) * width * (size_t)t->bands;
        float *luma = s->planes[0] + y * JPEG_LINE;
        if (t->bands == 3) {
            colour_line(line, width, whole, luma, s);
            if (y % 2) chroma_line(s, whole / 2, y / 2);
            continue;
        }
        for (size_t x = 0; x < whole; x++) luma[x] = (float)line[x < width ? x : width - 1] - 128.0f;
    }
    for (size_t y = 0; y < tall; y += 8) cosines(s->planes[0] + y * JPEG_LINE, whole, JPEG_LINE);
    for (int b = 1; b < t->bands; b++) cosines(s->planes[b], whole / 2, JPEG_LINE);
    for (size_t left = 0; left < whole; left += tall) {
        for (size_t y = 0; y < tall; y += 8)
            for (size_t x = left; x < left + tall; x += 8) {
                quantise(s->planes[0] + y * JPEG_LINE + x, t->shares[0], block);
                put_block(w, block, t, 0, nonzero, &before[0]);
            }
        for (int b = 1; b < t->bands; b++) {
            quantise(s->planes[b] + left / 2, t->shares[1], block);
            put_block(w, block, t, 1, nonzero, &before[b]);
        }
    }
}

/* Pixels, bands interleaved, as the data of a JPEG; where they end, or NULL where the tables lack a code. */
BODY uint8_t *jpeg_data(const uint8_t *src, size_t height, size_t width, const JpegTables *t, JpegStrip *s, Nonzero nonzero, uint8_t *out) {
    size_t tall = t->bands == 3 ? 16 : 8;
    int before[3] = {0, 0, 0};
    BitWriter w = {out, 0, 0, 1};
    memset(s->sums, 0, sizeof s->sums);
    for (size_t y = 0; y < height; y += tall)
        jpeg_strip(src + y * width * (size_t)t->bands, height - y, width, t, s, nonzero, before, &w);
    int left = w.count % 8;
    if (left) put_code(&w, (1u << (8 - left)) - 1, 8 - left);
    for (; w.count; w.count -= 8) put_byte(&w, (uint8_t)(w.bits >> (w.count - 8)));
    return w.good ? w.at : NULL;
}

static uint8_t *jpeg_data_plain(const uint8_t *p, size_t h, size_t w, const JpegTables *t, JpegStrip *s, uint8_t *o) {
    return jpeg_data(p, h, w, t, s, nonzero_plain, o);
}

#if HAVE_AVX2
AVX2 static uint8_t *jpeg_data_avx2(const uint8_t *p, size_t h, size_t w, const JpegTables *t, JpegStrip *s, uint8_t *o) {
    return jpeg_data(p, h, w, t, s, nonzero_avx2, o);
}
#endif

static size_t jpeg_most(size_t height, size_t width) { return 6 * ((height + 15) / 16) * ((width + 15) / 16) * JPEG_BLOCK + 16; }
