// Owns: dot products of packed rows with AVX-512 VNNI and VBMI, 256 weights a step.
// Two blocks fill one register: a byte permute brings each group of eight codes into its own 64-bit lane, a
// multishift moves each code to the bottom of its byte, a table permute turns it into level + bias.

#include "dot.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,f16c,fma")))
#define INLINE AVX512 static inline __attribute__((always_inline))

#define Q8_BYTES 34

// One packed format. perm, shift and level are 64-byte tables.
typedef struct {
    int block_bytes;
    int code_bytes;
    int bias;
    bool two_scales;
    bool scale_first;
    const uint8_t * perm;
    const uint8_t * shift;
    const uint8_t * level;
} packed;

#define EIGHT(b)     (b), (b) + 1, (b) + 2, (b) + 3, (b) + 4, (b) + 5, (b) + 6, (b) + 7
#define FOURTH(b, s) EIGHT(b), EIGHT((b) + (s)), EIGHT((b) + 2 * (s)), EIGHT((b) + 3 * (s))
#define HALVES(b)    EIGHT(b), EIGHT((b) + 8), EIGHT(b), EIGHT((b) + 8)
#define STEPS(s, b)                                                                                                    \
    (s), (s) + (b), (s) + 2 * (b), (s) + 3 * (b), (s) + 4 * (b), (s) + 5 * (b), (s) + 6 * (b), (s) + 7 * (b)
#define TWICE(...)  __VA_ARGS__, __VA_ARGS__
#define TIMES8(...) TWICE(TWICE(TWICE(__VA_ARGS__)))

static const uint8_t perm_fp2[64]      = {FOURTH(0, 2), FOURTH(10, 2)};
static const uint8_t perm_fp3[64]      = {FOURTH(0, 3), FOURTH(14, 3)};
static const uint8_t perm_fp6[64]      = {FOURTH(0, 6), FOURTH(26, 6)};
static const uint8_t perm_fp4[64]      = {HALVES(0), HALVES(18)};
static const uint8_t perm_fp4_fast[64] = {HALVES(0), HALVES(17)};

static const uint8_t shift_fp2[64] = {TIMES8(STEPS(0, 2))};
static const uint8_t shift_fp3[64] = {TIMES8(STEPS(0, 3))};
static const uint8_t shift_fp6[64] = {TIMES8(STEPS(0, 6))};
static const uint8_t shift_fp4[64] = {TWICE(TWICE(STEPS(0, 8)), TWICE(STEPS(4, 8)))};

// The table permute reads six index bits, so short tables repeat instead of masking the index.
static const uint8_t level_fp2[64] = {TWICE(TIMES8(0, 1, 2, 3))};
static const uint8_t level_fp3[64] = {TIMES8(4, 5, 6, 8, 4, 3, 2, 0)};
static const uint8_t level_fp4[64] = {TWICE(TWICE(10, 11, 12, 13, 14, 16, 18, 20, 10, 9, 8, 7, 6, 4, 2, 0))};
static const uint8_t level_fp6[64] = {EIGHT(31),     EIGHT(39),     EIGHT(47),     EIGHT(55),
                                      STEPS(31, -1), STEPS(23, -1), STEPS(15, -1), STEPS(7, -1)};

INLINE __mmask64 first(int n) {
    return n <= 0 ? 0 : n >= 64 ? ~(__mmask64) 0 : ((__mmask64) 1 << n) - 1;
}

// level + bias of up to two blocks; *raw gets their bytes.
INLINE __m512i unpack(const packed * f, const uint8_t * x, int n, __m512i * raw) {
    const __m512i codes = _mm512_maskz_loadu_epi8(first(n * f->block_bytes), x);
    const __m512i lanes = _mm512_permutexvar_epi8(_mm512_loadu_si512(f->perm), codes);
    *raw                = codes;
    return _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(_mm512_loadu_si512(f->shift), lanes),
                                   _mm512_loadu_si512(f->level));
}

INLINE __m512i load_q8(const uint8_t * y, int n) {
    const __m512i q = _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *) (y + 2)));
    return n == 2 ? _mm512_inserti64x4(q, _mm256_loadu_si256((const __m256i *) (y + Q8_BYTES + 2)), 1) : q;
}

// Sums of each four neighbours; 128-bit lane l of the result holds lane l of p[0..3].
INLINE __m512i sum_fours(const __m512i * p) {
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(p[0], p[1]), _mm512_unpackhi_epi32(p[0], p[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(p[2], p[3]), _mm512_unpackhi_epi32(p[2], p[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

INLINE __m512 swap_lanes(__m512 v) {
    return _mm512_shuffle_f32x4(v, v, _MM_SHUFFLE(2, 3, 0, 1));
}

// The float terms of n blocks, n <= 8. Term of block b is at terms[8 * (b & 1) + (b >> 1)].
INLINE void eight_terms(const packed * f, const uint8_t * x, const uint8_t * y, int n, float * terms) {
    const int second       = f->two_scales ? 1 : 0;
    const int at           = f->code_bytes;
    const __m512i scale_at = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_set_m128i(_mm_set1_epi32(at + second), _mm_set1_epi32(at))),
        _mm256_set_m128i(_mm_set1_epi32(at + f->block_bytes + second), _mm_set1_epi32(at + f->block_bytes)), 1);
    const __m512i d_at = _mm512_castsi256_si512(_mm256_set_m128i(_mm_set1_epi16(Q8_BYTES / 2), _mm_setzero_si128()));
    const __m512i bias = _mm512_set1_epi8((char) f->bias);

    __m512i sums[4];
    __m512i scale_bytes = _mm512_setzero_si512();
    __m512i halves      = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
        const int m = n - 2 * p > 2 ? 2 : n - 2 * p;
        sums[p]     = _mm512_setzero_si512();
        if (m <= 0) {
            continue;
        }
        const uint8_t * xp = x + 2 * p * f->block_bytes;
        const uint8_t * yp = y + 2 * p * Q8_BYTES;
        __m512i raw;
        const __m512i w = unpack(f, xp, m, &raw);
        const __m512i q = load_q8(yp, m);
        sums[p]         = _mm512_sub_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), w, q),
                                           _mm512_dpbusd_epi32(_mm512_setzero_si512(), bias, q));
        scale_bytes =
            _mm512_mask_permutexvar_epi8(scale_bytes, (__mmask64) 0x0001000100010001 << (4 * p), scale_at, raw);
        halves = _mm512_mask_permutexvar_epi16(halves, (__mmask32) 0x1111 << p, d_at,
                                               _mm512_maskz_loadu_epi8(first(m * Q8_BYTES), yp));
    }

    const __mmask16 valid = _mm512_cmple_epu32_mask(scale_bytes, _mm512_set1_epi32(ROCMFPX_SCALE_MAX));
    const __m512 s        = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_maskz_slli_epi32(valid, scale_bytes, 7)));
    const __m512 d        = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), _mm512_set1_ps(128.0f));
    __m512i i             = sum_fours(sums);
    __m512 t;
    if (!f->two_scales) {
        i = _mm512_add_epi32(i, _mm512_shuffle_i32x4(i, i, _MM_SHUFFLE(2, 3, 0, 1)));
        t = _mm512_mul_ps(_mm512_mul_ps(s, d), _mm512_cvtepi32_ps(i));
    } else if (f->scale_first) {
        t = _mm512_mul_ps(_mm512_mul_ps(s, d), _mm512_cvtepi32_ps(i));
        t = _mm512_add_ps(t, swap_lanes(t));
    } else {
        t = _mm512_mul_ps(s, _mm512_cvtepi32_ps(i));
        t = _mm512_mul_ps(d, _mm512_add_ps(t, swap_lanes(t)));
    }
    _mm512_storeu_ps(terms, t);
}

INLINE float add_terms(float sum, const float * terms, int n) {
#pragma GCC unroll 8
    for (int b = 0; b < n; ++b) {
        sum += terms[8 * (b & 1) + (b >> 1)];
    }
    return sum;
}

INLINE float dot(const packed * f, int64_t n_blocks, const uint8_t * x, const uint8_t * y) {
    float terms[16];
    float sum = 0.0f;
    int64_t b = 0;
    for (; b + 8 <= n_blocks; b += 8) {
        eight_terms(f, x, y, 8, terms);
        sum = add_terms(sum, terms, 8);
        x += 8 * f->block_bytes;
        y += 8 * Q8_BYTES;
    }
    if (b < n_blocks) {
        const int rest = (int) (n_blocks - b);
        eight_terms(f, x, y, rest, terms);
        for (int i = 0; i < rest; ++i) {
            sum = add_terms(sum, terms + 8 * (i & 1) + (i >> 1), 1);
        }
    }
    return sum;
}

#define DEFINE_DOT(stem, block, codes, format_bias, two, first_scale, perm, shift, level)                              \
    AVX512 static float dot_##stem(int64_t n_blocks, const uint8_t * x, const uint8_t * y) {                           \
        const packed f = {block, codes, format_bias, two, first_scale, perm, shift, level};                            \
        return dot(&f, n_blocks, x, y);                                                                                \
    }

DEFINE_DOT(fp4, 18, 16, ROCMFP4_BIAS, true, true, perm_fp4, shift_fp4, level_fp4)
DEFINE_DOT(fp4_fast, 17, 16, ROCMFP4_BIAS, false, true, perm_fp4_fast, shift_fp4, level_fp4)
DEFINE_DOT(fp6, 26, 24, ROCMFP6_BIAS, true, false, perm_fp6, shift_fp6, level_fp6)
DEFINE_DOT(fp3, 14, 12, ROCMFP3_BIAS, true, false, perm_fp3, shift_fp3, level_fp3)
DEFINE_DOT(fp2, 10, 8, ROCMFP2_BIAS, true, false, perm_fp2, shift_fp2, level_fp2)

// fp8 has nothing to unpack, and two blocks with their scales do not fit one register: AVX2 is faster by a quarter.
const rocmfpx_dot rocmfpx_dot_avx512[ROCMFPX_FORMATS] = {dot_fp4, dot_fp4_fast, dot_fp6, rocmfpx_dot_fp8_avx2,
                                                         dot_fp3, dot_fp2};
#endif
