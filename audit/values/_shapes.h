/* Small pictures and exact palettes: the loops behind previews and encodings. No Python in here.
 *
 * The bodies are plain C that a compiler vectorises; _native.c instantiates each for AVX2 as well where it can.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define BODY static inline __attribute__((always_inline))
#else
#define BODY static inline
#endif

/* ---- box reduction ----------------------------------------------------------------------------------------- */

/* Where a picture lies: `planes` blocks of height × width pixels, each of `step` elements, `bands` of them shown. */
typedef struct {
    size_t planes, height, width, step, bands, factor;
} Layout;

static size_t shrunk(size_t side, size_t factor) { return (side + factor - 1) / factor; }
static size_t upto(size_t whole, size_t begin, size_t most) { return whole - begin < most ? whole - begin : most; }

#define FACTOR_MOST 256 /* rows whose sum of bytes fits sixteen bits */
#define SWAR_MOST 16    /* a box whose sum of bytes does */

/* The loops of the usual factors have a constant length, and so no loop is left of them. */
#define BOX(ADD)                                              \
    switch (across) {                                         \
    case 2: for (int x = 0; x < 2; x++) { ADD; } break;       \
    case 3: for (int x = 0; x < 3; x++) { ADD; } break;       \
    case 4: for (int x = 0; x < 4; x++) { ADD; } break;       \
    case 6: for (int x = 0; x < 6; x++) { ADD; } break;       \
    default: for (size_t x = 0; x < across; x++) { ADD; }     \
    }

/* Columns are summed first: that is the part that goes over all the memory, and it vectorises. */
BODY void shrink_bytes(const uint8_t *restrict src, const Layout *l, uint16_t *restrict column, uint8_t *restrict out) {
    size_t rows = shrunk(l->height, l->factor), cols = shrunk(l->width, l->factor);
    size_t line = l->width * l->step, all = l->planes * l->bands;
    for (size_t p = 0; p < l->planes; p++)
        for (size_t r = 0; r < rows; r++) {
            size_t top = r * l->factor, tall = upto(l->height, top, l->factor);
            memset(column, 0, line * sizeof *column);
            for (size_t y = 0; y < tall; y++) {
                const uint8_t *from = src + (p * l->height + top + y) * line;
                for (size_t x = 0; x < line; x++) column[x] = (uint16_t)(column[x] + from[x]);
            }
            for (size_t c = 0; c < cols; c++) {
                size_t left = c * l->factor, across = upto(l->width, left, l->factor);
                const uint16_t *box = column + left * l->step;
                uint8_t *put = out + (r * cols + c) * all + p * l->bands;
                float share = 1.0f / (float)(tall * across);
                if (l->step == 4 && l->factor <= SWAR_MOST) { /* four sums in one word; no sum overflows its quarter */
                    uint64_t four, total = 0;
                    uint16_t parts[4];
                    BOX(memcpy(&four, box + 4 * x, 8); total += four)
                    memcpy(parts, &total, 8);
                    for (size_t b = 0; b < l->bands; b++) put[b] = (uint8_t)((float)parts[b] * share + 0.5f);
                    continue;
                }
                for (size_t b = 0; b < l->bands; b++) {
                    uint32_t total = 0;
                    BOX(total += box[x * l->step + b])
                    put[b] = (uint8_t)((float)total * share + 0.5f);
                }
            }
        }
}

/* Sums of `factor` neighbours in a line of single floats; a constant factor is what lets this vectorise. */
BODY void neighbours(const float *restrict line, size_t boxes, size_t factor, float *restrict out) {
    for (size_t c = 0; c < boxes; c++) {
        float total = 0;
        for (size_t x = 0; x < factor; x++) total += line[c * factor + x];
        out[c] = total;
    }
}

BODY void boxes_of(const float *restrict line, size_t boxes, size_t factor, float *restrict spare) {
    switch (factor) {
    case 2: neighbours(line, boxes, 2, spare); break;
    case 3: neighbours(line, boxes, 3, spare); break;
    case 4: neighbours(line, boxes, 4, spare); break;
    case 5: neighbours(line, boxes, 5, spare); break;
    default: neighbours(line, boxes, factor, spare);
    }
}

/* As above for floats; the means stay floats. `column` has room for two lines. */
BODY void shrink_floats(const uint8_t *restrict src, const Layout *l, float *restrict column, float *restrict out) {
    size_t rows = shrunk(l->height, l->factor), cols = shrunk(l->width, l->factor);
    size_t line = l->width * l->step, all = l->planes * l->bands;
    for (size_t p = 0; p < l->planes; p++)
        for (size_t r = 0; r < rows; r++) {
            size_t top = r * l->factor, tall = upto(l->height, top, l->factor);
            memset(column, 0, line * sizeof *column);
            for (size_t y = 0; y < tall; y++) {
                const uint8_t *from = src + (p * l->height + top + y) * line * 4;
                for (size_t x = 0; x < line; x++) {
                    float e;
                    memcpy(&e, from + 4 * x, 4);
                    column[x] += e;
                }
            }
            size_t begin = 0;
            if (line == l->width) {
                float *sums = column + line, share = 1.0f / (float)(tall * l->factor);
                boxes_of(column, begin = line / l->factor, l->factor, sums);
                for (size_t c = 0; c < begin; c++) out[(r * cols + c) * all + p] = sums[c] * share;
            }
            for (size_t c = begin; c < cols; c++) {
                size_t left = c * l->factor, across = upto(l->width, left, l->factor);
                float share = 1.0f / (float)(tall * across);
                for (size_t b = 0; b < l->bands; b++) {
                    float total = 0;
                    BOX(total += column[(left + x) * l->step + b])
                    out[(r * cols + c) * all + p * l->bands + b] = total * share;
                }
            }
        }
}

/* 0 for the smallest, 255 for the largest; 0 when the numbers do not allow it. */
BODY int scale_to_bytes(const float *restrict means, size_t n, uint8_t *restrict out) {
    float low = INFINITY, high = -INFINITY, whole = 0;
    for (size_t i = 0; i < n; i++) {
        low = means[i] < low ? means[i] : low;
        high = means[i] > high ? means[i] : high;
        whole += means[i] * 0.0f; /* NaN once anything is not finite */
    }
    float factor = high > low ? 255.0f / (high - low) : 0.0f;
    if (whole != 0 || !isfinite(high - low) || !isfinite(factor)) return 0;
    for (size_t i = 0; i < n; i++) {
        float v = (means[i] - low) * factor;
        out[i] = (uint8_t)(v < 255.0f ? v : 255.0f);
    }
    return 1;
}

/* ---- floats that are bytes in disguise --------------------------------------------------------------------- */

#define STRETCH 2048 /* elements looked at together: they stay in the first cache */

/* k with x == k/255 bit for bit, for all of a stretch; 0 where that fails. */
static int unit_levels_plain(const uint8_t *restrict src, size_t n, uint8_t *restrict out) {
    float x[STRETCH], back[STRETCH];
    memcpy(x, src, 4 * n);
    for (size_t i = 0; i < n; i++) {
        float y = x[i] * 255.0f + 0.5f;
        y = y > 0.0f ? y : 0.0f; /* NaN too: it fails the comparison of bits below */
        y = y < 255.0f ? y : 255.0f;
        int32_t k = (int32_t)y;
        back[i] = (float)k / 255.0f;
        out[i] = (uint8_t)k;
    }
    return memcmp(x, back, 4 * n) == 0;
}

#if HAVE_AVX2
AVX2 static int unit_levels_avx2(const uint8_t *restrict src, size_t n, uint8_t *restrict out) {
    const __m256 most = _mm256_set1_ps(255.0f);
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i wrong = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps((const float *)(src + 4 * i));
        __m256i k = _mm256_cvtps_epi32(_mm256_mul_ps(x, most)); /* what is out of range fails the comparison */
        k = _mm256_and_si256(k, _mm256_set1_epi32(255));
        __m256 back = _mm256_div_ps(_mm256_cvtepi32_ps(k), most);
        wrong = _mm256_or_si256(wrong, _mm256_xor_si256(_mm256_castps_si256(x), _mm256_castps_si256(back)));
        uint32_t four[2] = {
            (uint32_t)_mm_cvtsi128_si32(_mm_shuffle_epi8(_mm256_castsi256_si128(k), order)),
            (uint32_t)_mm_cvtsi128_si32(_mm_shuffle_epi8(_mm256_extracti128_si256(k, 1), order)),
        };
        memcpy(out + i, four, 8);
    }
    return _mm256_testz_si256(wrong, wrong) && unit_levels_plain(src + 4 * i, n - i, out + i);
}
#endif

#define SLOTS 4096 /* sixteen for each of 256 evenly spaced values: rounding never puts two into one */

#define EMPTY 0xFFFFFFFFu /* no finite float */

typedef struct {
    uint32_t bits[SLOTS];
    uint8_t level[SLOTS];
    float low, scale;
    uint32_t table[256];
    int count;
} Palette;

/* Signed order of the result is numeric order of the floats, and the other way round. */
BODY int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }

BODY int palette_range(const uint8_t *restrict src, size_t n, Palette *p) {
    int32_t low = INT32_MAX, high = INT32_MIN, bits[STRETCH];
    for (size_t at = 0; at < n; at += STRETCH) {
        size_t some = upto(n, at, STRETCH);
        memcpy(bits, src + 4 * at, 4 * some);
        for (size_t i = 0; i < some; i++) {
            int32_t k = ordered(bits[i]);
            low = k < low ? k : low;
            high = k > high ? k : high;
        }
    }
    float high_value, span;
    low = ordered(low), high = ordered(high);
    memcpy(&p->low, &low, 4);
    memcpy(&high_value, &high, 4);
    span = high_value - p->low;
    p->scale = span > 0 ? (float)(SLOTS - 1) / span : 0.0f;
    return isfinite(p->low) && isfinite(span) && isfinite(p->scale);
}

/* Slots of a stretch; the order of slots is the order of values. */
BODY void slots_of(const uint8_t *restrict src, size_t n, const Palette *p, uint16_t *restrict slot) {
    float low = p->low, scale = p->scale;
    for (size_t i = 0; i < n; i++) {
        int32_t k = (int32_t)((float_at(src, i) - low) * scale + 0.5f);
        slot[i] = (uint16_t)(k < SLOTS ? k : SLOTS - 1);
    }
}

/* Number the slots in use; 0 when there are more than 256. */
BODY int number_slots(Palette *p) {
    p->count = 0;
    for (int k = 0; k < SLOTS; k++)
        if (p->bits[k] != EMPTY) {
            if (p->count == 256) return 0;
            p->table[p->count] = p->bits[k];
            p->level[k] = (uint8_t)p->count++;
        }
    return 1;
}

/* Levels of one channel of at most 256 values, no two of which share a slot; 0 when it is not such a channel. */
BODY int palette_levels(const uint8_t *restrict src, size_t n, uint8_t *restrict out, Palette *p) {
    uint32_t bits, wrong;
    uint16_t slot[STRETCH];
    if (!palette_range(src, n, p)) return 0;
    memset(p->bits, 255, sizeof p->bits);
    for (size_t at = 0; at < n; at += STRETCH) { /* enter every value; nothing is compared yet */
        size_t some = upto(n, at, STRETCH);
        const uint8_t *from = src + 4 * at;
        slots_of(from, some, p, slot);
        for (size_t i = 0; i < some; i++) memcpy(&p->bits[slot[i]], from + 4 * i, 4);
        if (at == 0 && !number_slots(p)) return 0; /* what is not a palette is mostly found out at once */
    }
    if (!number_slots(p)) return 0;
    for (size_t at = 0; at < n; at += STRETCH) {
        size_t some = upto(n, at, STRETCH);
        const uint8_t *from = src + 4 * at;
        slots_of(from, some, p, slot);
        for (size_t i = wrong = 0; i < some; i++) {
            memcpy(&bits, from + 4 * i, 4);
            wrong |= p->bits[slot[i]] ^ bits;
            out[at + i] = p->level[slot[i]];
        }
        if (wrong) return 0;
    }
    return 1;
}

/* ---- rows -------------------------------------------------------------------------------------------------- */

/* R, G, B of four-byte pixels without the fourth; up to sixteen bytes beyond the last are overwritten. */
BODY void pack_plain(const uint8_t *restrict src, size_t pixels, uint8_t *restrict out) {
    for (size_t x = 0; x < pixels; x++) memcpy(out + 3 * x, src + 4 * x, 3);
}

#if HAVE_AVX2
AVX2 static inline void pack_avx2(const uint8_t *restrict src, size_t pixels, uint8_t *restrict out) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    size_t x = 0;
    for (; x + 4 <= pixels; x += 4) {
        __m128i four = _mm_loadu_si128((const __m128i *)(src + 4 * x));
        _mm_storeu_si128((__m128i *)(out + 3 * x), _mm_shuffle_epi8(four, order));
    }
    pack_plain(src + 4 * x, pixels - x, out + 3 * x);
}
#endif

typedef void (*Packing)(const uint8_t *restrict, size_t, uint8_t *restrict);

/* R, G, B, each minus the one in the row above; `line` holds two rows and sixteen bytes to spare after each. */
BODY void rgb_rows(
    const uint8_t *restrict src, size_t height, size_t width, Packing pack, uint8_t *line, uint8_t *restrict out) {
    size_t row = 3 * width;
    uint8_t *now = line, *before = line + row + 16;
    memset(before, 0, row);
    for (size_t y = 0; y < height; y++, out += row) {
        pack(src + 4 * y * width, width, now);
        for (size_t x = 0; x < row; x++) out[x] = (uint8_t)(now[x] - before[x]);
        uint8_t *swap = now;
        now = before;
        before = swap;
    }
}
