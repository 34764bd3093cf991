// Owns: one band times a panel of columns with AVX-512 VNNI and VBMI; layouts are drawn in dot.h.
// Rows lie in the 16 lanes, so every lane adds its blocks in index order and no lane is ever reduced. A block
// is decoded once into eight registers, then each column costs eight dot-accumulates and the float tail.

#include "dot.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>
#include <string.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,f16c,fma")))
#define INLINE AVX512 static inline __attribute__((always_inline))

#define TWICE(...)  __VA_ARGS__, __VA_ARGS__
#define TIMES4(...) TWICE(TWICE(__VA_ARGS__))
static const uint8_t level_fp3[64] = {TWICE(TIMES4(4, 5, 6, 8, 4, 3, 2, 0))};
static const uint8_t level_fp4[64] = {TIMES4(10, 11, 12, 13, 14, 16, 18, 20, 10, 9, 8, 7, 6, 4, 2, 0)};

INLINE __m512i line(const uint8_t * codes, int i) {
    return _mm512_loadu_si512(codes + i * ROCMFPX_LINE);
}

// The fields `hi` of three lines as one six-bit code; bits 6 and 7 are rubbish.
INLINE __m512i join_hi(__m512i x, __m512i y, __m512i z) {
    enum { pick = 0xca }; // mask ? b : c; clang takes no variable here
    const __m512i xy =
        _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x0c), _mm512_srli_epi16(y, 4), _mm512_srli_epi16(x, 6), pick);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x30), _mm512_srli_epi16(z, 2), xy, pick);
}

// w[g] = level + bias of group g. Table permutes ignore the two high bits of their index.
INLINE void unpack_fp2(const uint8_t * codes, __m512i * w) {
    const __m512i mask = _mm512_set1_epi8(3);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
        const __m512i x = line(codes, v);
        w[4 * v + 0]    = _mm512_and_si512(x, mask);
        w[4 * v + 1]    = _mm512_and_si512(_mm512_srli_epi16(x, 2), mask);
        w[4 * v + 2]    = _mm512_and_si512(_mm512_srli_epi16(x, 4), mask);
        w[4 * v + 3]    = _mm512_and_si512(_mm512_srli_epi16(x, 6), mask);
    }
}

INLINE void unpack_fp3(const uint8_t * codes, __m512i * w) {
    const __m512i level = _mm512_loadu_si512(level_fp3);
    __m512i x[3];
#pragma GCC unroll 3
    for (int v = 0; v < 3; ++v) {
        x[v]     = line(codes, v);
        w[v]     = _mm512_permutexvar_epi8(x[v], level);
        w[v + 3] = _mm512_permutexvar_epi8(_mm512_srli_epi16(x[v], 3), level);
    }
    const __m512i hi = join_hi(x[0], x[1], x[2]);
    w[6]             = _mm512_permutexvar_epi8(hi, level);
    w[7]             = _mm512_permutexvar_epi8(_mm512_srli_epi16(hi, 3), level);
}

INLINE void unpack_fp4(const uint8_t * codes, __m512i * w) {
    const __m512i level = _mm512_loadu_si512(level_fp4);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
        const __m512i x = line(codes, v);
        w[v]            = _mm512_permutexvar_epi8(x, level);
        w[v + 4]        = _mm512_permutexvar_epi8(_mm512_srli_epi16(x, 4), level);
    }
}

INLINE void unpack_fp6(const uint8_t * codes, __m512i * w) {
    const __m512i mask = _mm512_set1_epi8(0x3f);
#pragma GCC unroll 2
    for (int t = 0; t < 2; ++t) {
        const __m512i x = line(codes, 3 * t);
        const __m512i y = line(codes, 3 * t + 1);
        const __m512i z = line(codes, 3 * t + 2);
        w[4 * t + 0]    = _mm512_and_si512(x, mask);
        w[4 * t + 1]    = _mm512_and_si512(y, mask);
        w[4 * t + 2]    = _mm512_and_si512(z, mask);
        w[4 * t + 3]    = _mm512_and_si512(join_hi(x, y, z), mask);
    }
}

INLINE void unpack_fp8(const uint8_t * codes, __m512i * w) {
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) {
        w[v] = line(codes, v);
    }
}

INLINE __m512 scales(const uint8_t * bytes) {
    const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *) bytes));
    return _mm512_cvtph_ps(_mm256_slli_epi16(words, 7));
}

INLINE __m512i dot4(int32_t start, const __m512i * w, const int8_t * q, int n) {
    __m512i sum = _mm512_set1_epi32(start);
#pragma GCC unroll 8
    for (int g = 0; g < n; ++g) {
        int32_t four;
        memcpy(&four, q + 4 * g, sizeof(four));
        sum = _mm512_dpbusd_epi32(sum, w[g], _mm512_set1_epi32(four));
    }
    return sum;
}

typedef struct {
    int code_bytes; // of one block of one row
    bool two_scales;
    bool scale_first;
    void (*unpack)(const uint8_t * codes, __m512i * w);
} banded;

INLINE __m512 add_block(const banded * f, __m512 sum, const __m512i * w, __m512 s0, __m512 s1, const rocmfpx_act * a) {
    const __m512 d = _mm512_set1_ps(a->d);
    if (!f->two_scales) {
        const __m512 i = _mm512_cvtepi32_ps(dot4(a->start[0], w, a->q, 8));
        return _mm512_add_ps(sum, _mm512_mul_ps(_mm512_mul_ps(s0, d), i));
    }
    const __m512 i0 = _mm512_cvtepi32_ps(dot4(a->start[0], w, a->q, 4));
    const __m512 i1 = _mm512_cvtepi32_ps(dot4(a->start[1], w + 4, a->q + 16, 4));
    if (f->scale_first) {
        return _mm512_add_ps(
            sum, _mm512_add_ps(_mm512_mul_ps(_mm512_mul_ps(s0, d), i0), _mm512_mul_ps(_mm512_mul_ps(s1, d), i1)));
    }
    return _mm512_add_ps(sum, _mm512_mul_ps(d, _mm512_add_ps(_mm512_mul_ps(s0, i0), _mm512_mul_ps(s1, i1))));
}

INLINE void columns(const banded * f, int64_t n_blocks, const uint8_t * band, const rocmfpx_act * panel, int width,
                    const int n_cols, float * out) {
    const int scale_bytes = f->two_scales ? 2 * ROCMFPX_BAND : ROCMFPX_BAND;
    __m512 sum[ROCMFPX_PANEL];
#pragma GCC unroll 16
    for (int c = 0; c < n_cols; ++c) {
        sum[c] = _mm512_setzero_ps();
    }
    for (int64_t left = n_blocks; left > 0; left -= ROCMFPX_CHUNK) {
        const int n           = left < ROCMFPX_CHUNK ? (int) left : ROCMFPX_CHUNK;
        const uint8_t * scale = band;
        const uint8_t * codes = band + n * scale_bytes;
        for (int b = 0; b < n; ++b) {
            __m512i w[8];
            f->unpack(codes, w);
            const __m512 s0 = scales(scale);
            const __m512 s1 = f->two_scales ? scales(scale + ROCMFPX_BAND) : s0;
#pragma GCC unroll 16
            for (int c = 0; c < n_cols; ++c) {
                sum[c] = add_block(f, sum[c], w, s0, s1, panel + c);
            }
            codes += f->code_bytes * ROCMFPX_BAND;
            scale += scale_bytes;
            panel += width;
        }
        band = codes;
    }
#pragma GCC unroll 16
    for (int c = 0; c < n_cols; ++c) {
        _mm512_storeu_ps(out + c * ROCMFPX_BAND, sum[c]);
    }
}

#define COLUMNS_CASE(n)                                                                                                \
    case n:                                                                                                            \
        columns(&f, n_blocks, band, panel, width, n, out);                                                             \
        return;

#define DEFINE_TILE(stem, codes, two, first_scale)                                                                     \
    AVX512 static void tile_##stem(int64_t n_blocks, const uint8_t * band, const rocmfpx_act * panel, int width,       \
                                   int n_cols, float * out) {                                                          \
        const banded f = {codes, two, first_scale, unpack_##stem};                                                     \
        for (; n_cols > 0; n_cols -= 8, panel += 8, out += 8 * ROCMFPX_BAND) {                                         \
            switch (n_cols) {                                                                                          \
                COLUMNS_CASE(1)                                                                                        \
                COLUMNS_CASE(2)                                                                                        \
                COLUMNS_CASE(3)                                                                                        \
                COLUMNS_CASE(4)                                                                                        \
                COLUMNS_CASE(5)                                                                                        \
                COLUMNS_CASE(6)                                                                                        \
                COLUMNS_CASE(7)                                                                                        \
                COLUMNS_CASE(16)                                                                                       \
                default:                                                                                               \
                    columns(&f, n_blocks, band, panel, width, 8, out);                                                 \
            }                                                                                                          \
        }                                                                                                              \
    }

#define unpack_fp4_fast unpack_fp4
DEFINE_TILE(fp4, 16, true, true)
DEFINE_TILE(fp4_fast, 16, false, true)
DEFINE_TILE(fp6, 24, true, false)
DEFINE_TILE(fp8, 32, false, true)
DEFINE_TILE(fp3, 12, true, false)
DEFINE_TILE(fp2, 8, true, false)

const rocmfpx_tile rocmfpx_tile_avx512[ROCMFPX_FORMATS] = {tile_fp4, tile_fp4_fast, tile_fp6,
                                                           tile_fp8, tile_fp3,      tile_fp2};
#endif
