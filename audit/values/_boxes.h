/* Pictures made smaller by averaging boxes: the loops behind previews. No Python in here.
 *
 * The bodies are plain C that a compiler vectorises; _native.c instantiates each for AVX2 as well where it can. Both give the
 * same bits.
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

/* Where a picture lies: `planes` blocks of height × width pixels, each of `step` elements, `bands` of them shown. */
typedef struct {
    size_t planes, height, width, step, bands, factor;
} Layout;

static size_t shrunk(size_t side, size_t factor) { return (side + factor - 1) / factor; }
static size_t upto(size_t whole, size_t begin, size_t most) { return whole - begin < most ? whole - begin : most; }

#define FACTOR_MOST 256 /* rows whose sum of bytes fits sixteen bits */
#define SWAR_MOST 16    /* a box whose sum of bytes does */

/* `CALL` with the usual counts as constants, so that no loop over them is left and the one around them vectorises. */
#define WITH_CONSTANT(COUNT, CALL)        \
    switch (COUNT) {                      \
    case 2: { enum { N = 2 }; CALL; break; } \
    case 3: { enum { N = 3 }; CALL; break; } \
    case 4: { enum { N = 4 }; CALL; break; } \
    case 5: { enum { N = 5 }; CALL; break; } \
    case 6: { enum { N = 6 }; CALL; break; } \
    default: { size_t N = COUNT; CALL; }     \
    }

/* ---- bytes ------------------------------------------------------------------------------------------------- */

/* Sums of `tall` rows: the part that goes over all the memory. */
BODY void add_rows(const uint8_t *restrict src, size_t line, size_t tall, uint16_t *restrict column) {
    for (size_t x = 0; x < line; x++) {
        uint16_t total = 0;
        for (size_t y = 0; y < tall; y++) total = (uint16_t)(total + src[y * line + x]);
        column[x] = total;
    }
}

/* Sums of neighbouring pixels of four bands: four sums in one word, of which none overflows its quarter. */
BODY void add_pixels(const uint16_t *restrict column, size_t boxes, size_t across, uint16_t *restrict sums) {
    for (size_t c = 0; c < boxes; c++) {
        uint64_t four, total = 0;
        for (size_t x = 0; x < across; x++) {
            memcpy(&four, column + 4 * (c * across + x), 8);
            total += four;
        }
        memcpy(sums + 4 * c, &total, 8);
    }
}

/* The means of the whole boxes of a row of four-byte pixels, three bands of each; how many there are. */
BODY size_t pixel_means(
    const uint16_t *restrict column, const Layout *l, float share, uint16_t *restrict sums, uint8_t *restrict out) {
    size_t boxes = l->width / l->factor;
    uint8_t *restrict means = (uint8_t *)(sums + 4 * boxes);
    WITH_CONSTANT(l->factor, add_pixels(column, boxes, N, sums))
    for (size_t i = 0; i < 4 * boxes; i++) means[i] = (uint8_t)((float)sums[i] * share + 0.5f);
    for (size_t c = 0; c < boxes; c++) memcpy(out + 3 * c, means + 4 * c, 3);
    return boxes;
}

/* `column` has room for three lines of words. */
BODY void shrink_bytes(const uint8_t *restrict src, const Layout *l, uint16_t *restrict column, uint8_t *restrict out) {
    size_t rows = shrunk(l->height, l->factor), cols = shrunk(l->width, l->factor);
    size_t line = l->width * l->step, all = l->planes * l->bands;
    for (size_t p = 0; p < l->planes; p++)
        for (size_t r = 0; r < rows; r++) {
            size_t top = r * l->factor, tall = upto(l->height, top, l->factor), begin = 0;
            const uint8_t *from = src + (p * l->height + top) * line;
            WITH_CONSTANT(tall, add_rows(from, line, N, column))
            if (l->step == 4 && all == 3 && l->factor <= SWAR_MOST)
                begin = pixel_means(column, l, 1.0f / (float)(tall * l->factor), column + line, out + 3 * r * cols);
            for (size_t c = begin; c < cols; c++) {
                size_t left = c * l->factor, across = upto(l->width, left, l->factor);
                const uint16_t *box = column + left * l->step;
                float share = 1.0f / (float)(tall * across);
                for (size_t b = 0; b < l->bands; b++) {
                    uint32_t total = 0;
                    for (size_t x = 0; x < across; x++) total += box[x * l->step + b];
                    out[(r * cols + c) * all + p * l->bands + b] = (uint8_t)((float)total * share + 0.5f);
                }
            }
        }
}

/* ---- floats ------------------------------------------------------------------------------------------------ */

BODY void add_float_rows(const uint8_t *restrict src, size_t line, size_t tall, float *restrict column) {
    for (size_t x = 0; x < line; x++) {
        float total = 0, e;
        for (size_t y = 0; y < tall; y++) {
            memcpy(&e, src + 4 * (y * line + x), 4);
            total += e;
        }
        column[x] = total;
    }
}

/* Sums of `across` neighbours in a line of single floats. */
BODY void add_neighbours(const float *restrict line, size_t boxes, size_t across, float *restrict sums) {
    for (size_t c = 0; c < boxes; c++) {
        float total = 0;
        for (size_t x = 0; x < across; x++) total += line[c * across + x];
        sums[c] = total;
    }
}

/* As above for floats; the means stay floats. `column` has room for two lines. */
BODY void shrink_floats(const uint8_t *restrict src, const Layout *l, float *restrict column, float *restrict out) {
    size_t rows = shrunk(l->height, l->factor), cols = shrunk(l->width, l->factor);
    size_t line = l->width * l->step, all = l->planes * l->bands;
    for (size_t p = 0; p < l->planes; p++)
        for (size_t r = 0; r < rows; r++) {
            size_t top = r * l->factor, tall = upto(l->height, top, l->factor), begin = 0;
            const uint8_t *from = src + (p * l->height + top) * line * 4;
            WITH_CONSTANT(tall, add_float_rows(from, line, N, column))
            if (l->step == 1) {
                float *sums = column + line, share = 1.0f / (float)(tall * l->factor);
                begin = l->width / l->factor;
                WITH_CONSTANT(l->factor, add_neighbours(column, begin, N, sums))
                for (size_t c = 0; c < begin; c++) out[(r * cols + c) * all + p] = sums[c] * share;
            }
            for (size_t c = begin; c < cols; c++) {
                size_t left = c * l->factor, across = upto(l->width, left, l->factor);
                float share = 1.0f / (float)(tall * across);
                for (size_t b = 0; b < l->bands; b++) {
                    float total = 0;
                    for (size_t x = 0; x < across; x++) total += column[(left + x) * l->step + b];
                    out[(r * cols + c) * all + p * l->bands + b] = total * share;
                }
            }
        }
}

/* Signed order of the result is numeric order of the floats, and the other way round. Integers are compared many at a time. */
BODY int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }

/* 0 for the smallest, 255 for the largest; 0 when the numbers do not allow it. */
BODY int scale_to_bytes(const float *restrict means, size_t n, uint8_t *restrict out) {
    int32_t least = INT32_MAX, most = INT32_MIN;
    for (size_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, means + i, 4);
        bits = ordered(bits);
        least = bits < least ? bits : least;
        most = bits > most ? bits : most;
    }
    float low, high;
    least = ordered(least), most = ordered(most);
    memcpy(&low, &least, 4);
    memcpy(&high, &most, 4);
    float factor = high > low ? 255.0f / (high - low) : 0.0f;
    /* What is not finite is beyond all that is. */
    if (!isfinite(low) || !isfinite(high) || !isfinite(high - low) || !isfinite(factor)) return 0;
    for (size_t i = 0; i < n; i++) {
        float v = (means[i] - low) * factor;
        out[i] = (uint8_t)(v < 255.0f ? v : 255.0f);
    }
    return 1;
}
