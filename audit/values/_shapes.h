/* Exact palettes and rows: the loops behind encodings. No Python in here.
 *
 * The bodies are plain C that a compiler vectorises; _native.c instantiates each for AVX2 as well where it can.
 */
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
