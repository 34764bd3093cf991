// Owns: one band times a panel of columns with AVX2; layouts are drawn in dot.h.
// Half a band, eight rows, lies in the lanes. A half block is decoded once into registers and the stack, then
// used by up to four columns.

#include "dot.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>
#include <string.h>

#define AVX2   __attribute__((target("avx2,f16c")))
#define INLINE AVX2 static inline __attribute__((always_inline))

#define ROWS    8
#define COLUMNS 4

INLINE __m256i line(const uint8_t * codes, int i) {
    return _mm256_loadu_si256((const __m256i *) (codes + i * ROCMFPX_LINE));
}

INLINE __m256i masked(__m256i x, int shift, int mask) {
    return _mm256_and_si256(_mm256_srli_epi16(x, shift), _mm256_set1_epi8((char) mask));
}

// The fields `hi` of three lines as one six-bit code.
INLINE __m256i join_hi(__m256i x, __m256i y, __m256i z) {
    return _mm256_or_si256(_mm256_or_si256(masked(x, 6, 0x03), masked(y, 4, 0x0c)), masked(z, 2, 0x30));
}

// w[g] = level + bias of group g; fp8: the level itself.
INLINE void unpack_fp2(const uint8_t * codes, __m256i * w) {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
        w[g] = masked(line(codes, g / 4), g % 4 * 2, 3);
    }
}

// Eight levels twice: a byte shuffle reads four index bits and zeroes where bit 7 is set.
INLINE void unpack_fp3(const uint8_t * codes, __m256i * w) {
    const __m256i level = _mm256_broadcastsi128_si256(_mm_setr_epi8(4, 5, 6, 8, 4, 3, 2, 0, 4, 5, 6, 8, 4, 3, 2, 0));
    __m256i x[3];
#pragma GCC unroll 3
    for (int v = 0; v < 3; ++v) {
        x[v]     = line(codes, v);
        w[v]     = _mm256_shuffle_epi8(level, masked(x[v], 0, 15));
        w[v + 3] = _mm256_shuffle_epi8(level, masked(x[v], 3, 15));
    }
    const __m256i hi = join_hi(x[0], x[1], x[2]);
    w[6]             = _mm256_shuffle_epi8(level, masked(hi, 0, 15));
    w[7]             = _mm256_shuffle_epi8(level, masked(hi, 3, 15));
}

INLINE void unpack_fp4(const uint8_t * codes, __m256i * w) {
    const __m256i level =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(10, 11, 12, 13, 14, 16, 18, 20, 10, 9, 8, 7, 6, 4, 2, 0));
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
        const __m256i x = line(codes, v);
        w[v]            = _mm256_shuffle_epi8(level, masked(x, 0, 15));
        w[v + 4]        = _mm256_shuffle_epi8(level, masked(x, 4, 15));
    }
}

INLINE void unpack_fp6(const uint8_t * codes, __m256i * w) {
#pragma GCC unroll 2
    for (int t = 0; t < 2; ++t) {
        const __m256i x = line(codes, 3 * t);
        const __m256i y = line(codes, 3 * t + 1);
        const __m256i z = line(codes, 3 * t + 2);
        w[4 * t + 0]    = masked(x, 0, 0x3f);
        w[4 * t + 1]    = masked(y, 0, 0x3f);
        w[4 * t + 2]    = masked(z, 0, 0x3f);
        w[4 * t + 3]    = join_hi(x, y, z);
    }
}

INLINE void unpack_fp8(const uint8_t * codes, __m256i * w) {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
        w[g] = _mm256_xor_si256(line(codes, g), _mm256_set1_epi8((char) 0x80));
    }
}

INLINE __m256 scales(const uint8_t * bytes) {
    const __m128i words = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *) bytes));
    return _mm256_cvtph_ps(_mm_slli_epi16(words, 7));
}

INLINE __m256i four(const int8_t * q) {
    int32_t v;
    memcpy(&v, q, sizeof(v));
    return _mm256_set1_epi32(v);
}

typedef struct {
    int code_bytes; // of one block of one row
    int groups;     // whose products fit 16 bits together; 0: levels are signed and only one does
    bool two_scales;
    bool scale_first;
    void (*unpack)(const uint8_t * codes, __m256i * w);
} banded;

// Sum over four groups of weights, on top of `start` unless levels are signed.
INLINE __m256i dot16(const banded * f, int32_t start, const __m256i * w, const int8_t * q) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum        = f->groups == 0 ? _mm256_setzero_si256() : _mm256_set1_epi32(start);
    __m256i words      = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
        const __m256i a = four(q + 4 * g);
        // Q8_0 holds no -128, so q can be negated
        const __m256i p = f->groups == 0 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), _mm256_sign_epi8(a, w[g]))
                                         : _mm256_maddubs_epi16(w[g], a);
        const int step  = f->groups == 0 ? 1 : f->groups;
        words           = g % step == 0 ? p : _mm256_add_epi16(words, p);
        if (g % step == step - 1) {
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, ones));
        }
    }
    return sum;
}

INLINE __m256 add_block(const banded * f, __m256 sum, const __m256i * w, __m256 s0, __m256 s1, const rocmfpx_act * a) {
    const __m256 d   = _mm256_set1_ps(a->d);
    const __m256i n0 = dot16(f, a->start[0], w, a->q);
    const __m256i n1 = dot16(f, f->two_scales ? a->start[1] : 0, w + 4, a->q + 16);
    if (!f->two_scales) {
        const __m256 i = _mm256_cvtepi32_ps(_mm256_add_epi32(n0, n1));
        return _mm256_add_ps(sum, _mm256_mul_ps(_mm256_mul_ps(s0, d), i));
    }
    const __m256 i0 = _mm256_cvtepi32_ps(n0);
    const __m256 i1 = _mm256_cvtepi32_ps(n1);
    if (f->scale_first) {
        return _mm256_add_ps(
            sum, _mm256_add_ps(_mm256_mul_ps(_mm256_mul_ps(s0, d), i0), _mm256_mul_ps(_mm256_mul_ps(s1, d), i1)));
    }
    return _mm256_add_ps(sum, _mm256_mul_ps(d, _mm256_add_ps(_mm256_mul_ps(s0, i0), _mm256_mul_ps(s1, i1))));
}

// Rows [row, row + parts * ROWS) times n_cols columns.
INLINE void columns(const banded * f, int64_t n_blocks, const uint8_t * band, int row, const int parts,
                    const rocmfpx_act * panel, int width, const int n_cols, float * out) {
    const int scale_bytes = f->two_scales ? 2 * ROCMFPX_BAND : ROCMFPX_BAND;
    __m256 sum[ROCMFPX_BAND / ROWS][COLUMNS];
#pragma GCC unroll 4
    for (int i = 0; i < parts * n_cols; ++i) {
        sum[i / n_cols][i % n_cols] = _mm256_setzero_ps();
    }
    for (int64_t left = n_blocks; left > 0; left -= ROCMFPX_CHUNK) {
        const int n           = left < ROCMFPX_CHUNK ? (int) left : ROCMFPX_CHUNK;
        const uint8_t * scale = band + row;
        const uint8_t * codes = band + n * scale_bytes + 4 * row;
        band += n * (scale_bytes + f->code_bytes * ROCMFPX_BAND);
        for (int b = 0; b < n; ++b) {
#pragma GCC unroll 2
            for (int part = 0; part < parts; ++part) {
                __m256i w[8];
                f->unpack(codes + part * 4 * ROWS, w);
                const __m256 s0 = scales(scale + part * ROWS);
                const __m256 s1 = f->two_scales ? scales(scale + ROCMFPX_BAND + part * ROWS) : s0;
#pragma GCC unroll 4
                for (int c = 0; c < n_cols; ++c) {
                    sum[part][c] = add_block(f, sum[part][c], w, s0, s1, panel + c);
                }
            }
            codes += f->code_bytes * ROCMFPX_BAND;
            scale += scale_bytes;
            panel += width;
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < parts * n_cols; ++i) {
        _mm256_storeu_ps(out + i % n_cols * ROCMFPX_BAND + row + i / n_cols * ROWS, sum[i / n_cols][i % n_cols]);
    }
}

// Few columns read the band once, as decoding from memory must; more keep their sums in registers instead.
#define WHOLE_BAND(n)                                                                                                  \
    case n:                                                                                                            \
        columns(&f, n_blocks, band, 0, ROCMFPX_BAND / ROWS, panel, width, n, out);                                     \
        return;
#define PART_OF_BAND(n)                                                                                                \
    for (int row = 0; row < ROCMFPX_BAND; row += ROWS) {                                                               \
        columns(&f, n_blocks, band, row, 1, panel, width, n, out);                                                     \
    }

#define DEFINE_TILE(stem, bytes, groups, two, first_scale)                                                             \
    AVX2 static void tile_##stem(int64_t n_blocks, const uint8_t * band, const rocmfpx_act * panel, int width,         \
                                 int n_cols, float * out) {                                                            \
        const banded f = {bytes, groups, two, first_scale, unpack_##stem};                                             \
        for (; n_cols > 0; n_cols -= COLUMNS, panel += COLUMNS, out += COLUMNS * ROCMFPX_BAND) {                       \
            switch (n_cols) {                                                                                          \
                WHOLE_BAND(1)                                                                                          \
                WHOLE_BAND(2)                                                                                          \
                case 3:                                                                                                \
                    PART_OF_BAND(3) return;                                                                            \
                default:                                                                                               \
                    PART_OF_BAND(COLUMNS)                                                                              \
            }                                                                                                          \
        }                                                                                                              \
    }

// Products of one group are at most 2 * 128 * (largest level + bias).
#define unpack_fp4_fast unpack_fp4
DEFINE_TILE(fp4, 16, 4, true, true)
DEFINE_TILE(fp4_fast, 16, 4, false, true)
DEFINE_TILE(fp6, 24, 2, true, false)
DEFINE_TILE(fp8, 32, 0, false, true)
DEFINE_TILE(fp3, 12, 4, true, false)
DEFINE_TILE(fp2, 8, 4, true, false)

const rocmfpx_tile rocmfpx_tile_avx2[ROCMFPX_FORMATS] = {tile_fp4, tile_fp4_fast, tile_fp6,
                                                         tile_fp8, tile_fp3,      tile_fp2};
#endif
