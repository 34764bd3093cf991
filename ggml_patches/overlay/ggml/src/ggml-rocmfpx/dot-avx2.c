// Owns: dot products of packed rows with AVX2, 128 weights a step.
// Bit streams: a byte shuffle brings the two bytes around each code into a 16-bit word, a multiply moves the
// code to the top of the word, a shift to the bottom.

#include "dot.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>
#include <string.h>

#define AVX2   __attribute__((target("avx2,f16c")))
#define INLINE AVX2 static inline __attribute__((always_inline))

#define Q8_BYTES 34
#define STEP     4 // blocks

// One packed format. products: sums of neighbouring pairs of level * q, 16 words in weight order.
typedef struct {
    int block_bytes;
    int code_bytes;
    bool two_scales;
    bool scale_first;
    __m256i (*products)(const uint8_t * x, __m256i q);
} packed;

INLINE __m128i load_u32(const uint8_t * x) {
    int32_t v;
    memcpy(&v, x, sizeof(v));
    return _mm_cvtsi32_si128(v);
}

// Codes of the words picked by two shuffles; `factor` moves a code to the top `bits` bits of its word.
INLINE __m256i window(__m256i x, __m256i pick_a, __m256i pick_b, __m256i factor, int bits) {
    const __m256i a = _mm256_mullo_epi16(_mm256_shuffle_epi8(x, pick_a), factor);
    const __m256i b = _mm256_mullo_epi16(_mm256_shuffle_epi8(x, pick_b), factor);
    return _mm256_packus_epi16(_mm256_srli_epi16(a, 16 - bits), _mm256_srli_epi16(b, 16 - bits));
}

// (level + bias) * q - bias * q: no sum of two leaves 16 bits.
INLINE __m256i biased_products(__m256i w, __m256i q, int bias) {
    return _mm256_sub_epi16(_mm256_maddubs_epi16(w, q), _mm256_maddubs_epi16(_mm256_set1_epi8((char) bias), q));
}

#define LANES(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))

INLINE __m256i products_fp2(const uint8_t * x, __m256i q) {
    const __m256i lanes  = _mm256_broadcastsi128_si256(_mm_loadl_epi64((const __m128i *) x));
    const __m256i pick_a = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, 4, -1, 4, -1, 4, -1,
                                            4, -1, 5, -1, 5, -1, 5, -1, 5, -1);
    const __m256i pick_b = _mm256_setr_epi8(2, -1, 2, -1, 2, -1, 2, -1, 3, -1, 3, -1, 3, -1, 3, -1, 6, -1, 6, -1, 6, -1,
                                            6, -1, 7, -1, 7, -1, 7, -1, 7, -1);
    const __m256i factor = _mm256_set1_epi64x(0x0100040010004000);
    return biased_products(window(lanes, pick_a, pick_b, factor, 2), q, ROCMFP2_BIAS);
}

// The eight words of 3-bit codes in bytes b, b + 1, b + 2. The last code's second byte is not used: any will do.
#define WORDS3(b)                                                                                                      \
    (b), (b) + 1, (b), (b) + 1, (b), (b) + 1, (b) + 1, (b) + 2, (b) + 1, (b) + 2, (b) + 1, (b) + 2, (b) + 2, -1,       \
        (b) + 2, -1

INLINE __m256i products_fp3(const uint8_t * x, __m256i q) {
    const __m128i twelve = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *) x), load_u32(x + 8));
    const __m256i pick_a = _mm256_setr_epi8(WORDS3(0), WORDS3(6));
    const __m256i pick_b = _mm256_setr_epi8(WORDS3(3), WORDS3(9));
    const __m256i factor =
        _mm256_broadcastsi128_si256(_mm_setr_epi16(1 << 13, 1 << 10, 1 << 7, 1 << 12, 1 << 9, 1 << 6, 1 << 11, 1 << 8));
    const __m256i code  = window(_mm256_broadcastsi128_si256(twelve), pick_a, pick_b, factor, 3);
    const __m256i level = LANES(4, 5, 6, 8, 4, 3, 2, 0, 4, 5, 6, 8, 4, 3, 2, 0);
    return biased_products(_mm256_shuffle_epi8(level, code), q, ROCMFP3_BIAS);
}

INLINE __m256i products_fp4(const uint8_t * x, __m256i q) {
    const __m128i codes   = _mm_loadu_si128((const __m128i *) x);
    const __m256i nibbles = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(codes, 4), codes), _mm256_set1_epi8(15));
    const __m256i level   = LANES(10, 11, 12, 13, 14, 16, 18, 20, 10, 9, 8, 7, 6, 4, 2, 0);
    return biased_products(_mm256_shuffle_epi8(level, nibbles), q, ROCMFP4_BIAS);
}

// Four 6-bit codes in bytes b, b + 1, b + 2.
#define WORDS6(b) (b), (b) + 1, (b), (b) + 1, (b) + 1, (b) + 2, (b) + 2, -1

INLINE __m256i products_fp6(const uint8_t * x, __m256i q) {
    const __m256i lanes  = _mm256_loadu2_m128i((const __m128i *) (x + 8), (const __m128i *) x);
    const __m256i pick_a = _mm256_setr_epi8(WORDS6(0), WORDS6(3), WORDS6(4), WORDS6(7));
    const __m256i pick_b = _mm256_setr_epi8(WORDS6(6), WORDS6(9), WORDS6(10), WORDS6(13));
    const __m256i factor = _mm256_set1_epi64x(0x0100004000100400);
    const __m256i code   = window(lanes, pick_a, pick_b, factor, 6);
    const __m256i sign   = _mm256_or_si256(_mm256_cmpgt_epi8(code, _mm256_set1_epi8(31)), _mm256_set1_epi8(1));
    return _mm256_maddubs_epi16(_mm256_and_si256(code, _mm256_set1_epi8(31)), _mm256_sign_epi8(q, sign));
}

// Q8_0 holds no -128, so q can be negated; a level of -128 has the absolute value 128 as an unsigned byte.
INLINE __m256i products_fp8(const uint8_t * x, __m256i q) {
    const __m256i level = _mm256_loadu_si256((const __m256i *) x);
    return _mm256_maddubs_epi16(_mm256_abs_epi8(level), _mm256_sign_epi8(q, level));
}

// Sums of each four neighbours; 128-bit lane l of the result holds lane l of p[0..3].
INLINE __m256i sum_fours(const __m256i * p) {
    const __m256i a = _mm256_add_epi32(_mm256_unpacklo_epi32(p[0], p[1]), _mm256_unpackhi_epi32(p[0], p[1]));
    const __m256i b = _mm256_add_epi32(_mm256_unpacklo_epi32(p[2], p[3]), _mm256_unpackhi_epi32(p[2], p[3]));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

INLINE __m256 swap_lanes(__m256 v) {
    return _mm256_permute2f128_ps(v, v, 1);
}

// S / 128 of the first scale of four blocks, then of the second; word b of `bytes` holds both of block b.
INLINE __m256 decode_scales(uint64_t bytes, bool two) {
    const __m128i first_then_second = two ? _mm_setr_epi8(0, -1, 2, -1, 4, -1, 6, -1, 1, -1, 3, -1, 5, -1, 7, -1)
                                          : _mm_setr_epi8(0, -1, 2, -1, 4, -1, 6, -1, 0, -1, 2, -1, 4, -1, 6, -1);
    const __m128i words             = _mm_shuffle_epi8(_mm_cvtsi64_si128((long long) bytes), first_then_second);
    const __m128i invalid           = _mm_cmpgt_epi16(words, _mm_set1_epi16(ROCMFPX_SCALE_MAX));
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_andnot_si128(invalid, words), 7));
}

// The float terms of n blocks, n <= STEP.
INLINE void four_terms(const packed * f, const uint8_t * x, const uint8_t * y, int n, float * terms) {
    __m256i sums[STEP];
    uint64_t scale_bytes = 0;
    uint64_t halves      = 0;
#pragma GCC unroll 4
    for (int b = 0; b < STEP; ++b) {
        sums[b] = _mm256_setzero_si256();
        if (b < n) {
            const uint8_t * block = x + b * f->block_bytes;
            const __m256i q       = _mm256_loadu_si256((const __m256i *) (y + b * Q8_BYTES + 2));
            sums[b]               = _mm256_madd_epi16(f->products(block, q), _mm256_set1_epi16(1));
            uint16_t half;
            uint16_t pair = block[f->code_bytes];
            memcpy(&half, y + b * Q8_BYTES, sizeof(half));
            if (f->two_scales) {
                memcpy(&pair, block + f->code_bytes, sizeof(pair));
            }
            halves |= (uint64_t) half << (16 * b);
            scale_bytes |= (uint64_t) pair << (16 * b);
        }
    }

    const __m256 s  = decode_scales(scale_bytes, f->two_scales);
    const __m128 d4 = _mm_mul_ps(_mm_cvtph_ps(_mm_cvtsi64_si128((long long) halves)), _mm_set1_ps(128.0f));
    const __m256 d  = _mm256_set_m128(d4, d4);
    __m256i i       = sum_fours(sums);
    __m256 t;
    if (!f->two_scales) {
        i = _mm256_add_epi32(i, _mm256_permute2x128_si256(i, i, 1));
        t = _mm256_mul_ps(_mm256_mul_ps(s, d), _mm256_cvtepi32_ps(i));
    } else if (f->scale_first) {
        t = _mm256_mul_ps(_mm256_mul_ps(s, d), _mm256_cvtepi32_ps(i));
        t = _mm256_add_ps(t, swap_lanes(t));
    } else {
        t = _mm256_mul_ps(s, _mm256_cvtepi32_ps(i));
        t = _mm256_mul_ps(d, _mm256_add_ps(t, swap_lanes(t)));
    }
    _mm_storeu_ps(terms, _mm256_castps256_ps128(t));
}

INLINE float dot(const packed * f, int64_t n_blocks, const uint8_t * x, const uint8_t * y) {
    float terms[STEP];
    float sum = 0.0f;
    int64_t b = 0;
    for (; b + STEP <= n_blocks; b += STEP) {
        four_terms(f, x, y, STEP, terms);
        for (int i = 0; i < STEP; ++i) {
            sum += terms[i];
        }
        x += STEP * f->block_bytes;
        y += STEP * Q8_BYTES;
    }
    if (b < n_blocks) {
        const int rest = (int) (n_blocks - b);
        four_terms(f, x, y, rest, terms);
        for (int i = 0; i < rest; ++i) {
            sum += terms[i];
        }
    }
    return sum;
}

#define DEFINE_DOT(stem, block, codes, two, first_scale, products)                                                     \
    AVX2 static float dot_##stem(int64_t n_blocks, const uint8_t * x, const uint8_t * y) {                             \
        const packed f = {block, codes, two, first_scale, products};                                                   \
        return dot(&f, n_blocks, x, y);                                                                                \
    }

DEFINE_DOT(fp4, 18, 16, true, true, products_fp4)
DEFINE_DOT(fp4_fast, 17, 16, false, true, products_fp4)
DEFINE_DOT(fp6, 26, 24, true, false, products_fp6)
DEFINE_DOT(fp8, 33, 32, false, true, products_fp8)
DEFINE_DOT(fp3, 14, 12, true, false, products_fp3)
DEFINE_DOT(fp2, 10, 8, true, false, products_fp2)

float rocmfpx_dot_fp8_avx2(int64_t n_blocks, const uint8_t * x, const uint8_t * y) {
    return dot_fp8(n_blocks, x, y);
}

const rocmfpx_dot rocmfpx_dot_avx2[ROCMFPX_FORMATS] = {dot_fp4, dot_fp4_fast, dot_fp6, dot_fp8, dot_fp3, dot_fp2};
#endif
