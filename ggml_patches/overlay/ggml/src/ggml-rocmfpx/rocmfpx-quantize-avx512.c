// Owns: quantising with 16 scales at a time. Called only where the processor has AVX-512 F.

#include "rocmfpx-codec.h"

#if defined(__GNUC__) && defined(__x86_64__)

#include <float.h>
#include <immintrin.h>

#define LANES          16
#define LANES_FUNCTION static __attribute__((target("avx512f")))
#define LANES_INLINE   static inline __attribute__((always_inline, target("avx512f")))

typedef __m512 vfloat;

LANES_INLINE vfloat v_load(const float * p) {
    return _mm512_loadu_ps(p);
}
LANES_INLINE void v_store(vfloat a, float * p) {
    _mm512_storeu_ps(p, a);
}
LANES_INLINE void v_store_int(vfloat a, int32_t * p) {
    _mm512_storeu_si512(p, _mm512_cvttps_epi32(a));
}
LANES_INLINE vfloat v_set1(float a) {
    return _mm512_set1_ps(a);
}
LANES_INLINE vfloat v_zero(void) {
    return _mm512_setzero_ps();
}
LANES_INLINE vfloat v_add(vfloat a, vfloat b) {
    return _mm512_add_ps(a, b);
}
LANES_INLINE vfloat v_sub(vfloat a, vfloat b) {
    return _mm512_sub_ps(a, b);
}
LANES_INLINE vfloat v_mul(vfloat a, vfloat b) {
    return _mm512_mul_ps(a, b);
}
LANES_INLINE vfloat v_min(vfloat a, vfloat b) {
    return _mm512_min_ps(a, b);
}
LANES_INLINE vfloat v_max(vfloat a, vfloat b) {
    return _mm512_max_ps(a, b);
}
LANES_INLINE vfloat v_abs(vfloat a) {
    return _mm512_abs_ps(a);
}
LANES_INLINE vfloat v_keep_below(vfloat a, vfloat b, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(b, v_set1(limit), _CMP_LT_OQ), a);
}
LANES_INLINE vfloat v_finite(vfloat a) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v_abs(a), v_set1(FLT_MAX), _CMP_LE_OQ), a);
}
LANES_INLINE float v_sum(vfloat a) {
    return _mm512_reduce_add_ps(a);
}
LANES_INLINE float v_least(vfloat a) {
    return _mm512_reduce_min_ps(a);
}
LANES_INLINE float v_greatest(vfloat a) {
    return _mm512_reduce_max_ps(a);
}
LANES_INLINE bool v_all_above(vfloat a, float limit) {
    return _mm512_cmp_ps_mask(a, v_set1(limit), _CMP_GT_OQ) == 0xffff;
}
LANES_INLINE unsigned v_lanes_equal(vfloat a, float value) {
    return _mm512_cmp_ps_mask(a, v_set1(value), _CMP_EQ_OQ);
}

// The largest float below one half: q + 0.5f itself would carry 0.49999997 up to 1.
LANES_INLINE vfloat v_round_away(vfloat a) {
    return _mm512_roundscale_ps(v_add(a, v_set1(0x1.fffffep-2f)), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}

LANES_INLINE vfloat v_product_fp2(vfloat q, vfloat scale) {
    vfloat p = v_sub(v_zero(), scale);
    p        = _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(q, v_set1(-0.5f), _CMP_GT_OQ), v_zero());
    p        = _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(q, v_set1(0.5f), _CMP_GT_OQ), scale);
    return _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(q, v_set1(1.5f), _CMP_GT_OQ), v_add(scale, scale));
}

LANES_INLINE vfloat v_product_fp3(vfloat q, vfloat scale) {
    vfloat p = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(q, v_set1(0.5f), _CMP_GT_OQ), scale);
    p        = _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(q, v_set1(1.5f), _CMP_GT_OQ), v_add(scale, scale));
    return _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(q, v_set1(3.0f), _CMP_GT_OQ), v_mul(scale, v_set1(4.0f)));
}

// All limits are multiples of one half, so the level is a function of 2q rounded up.
LANES_INLINE vfloat v_product_fp4(vfloat q, vfloat scale) {
    const vfloat low   = _mm512_setr_ps(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 6, 6, 6, 6, 8);
    const vfloat high  = _mm512_setr_ps(8, 8, 8, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10);
    const vfloat twice = v_min(v_add(q, q), v_set1(31.0f));
    const __m512i up   = _mm512_cvt_roundps_epi32(twice, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    return v_mul(_mm512_permutex2var_ps(low, up, high), scale);
}

// A weight for each usable pair of x and qw, else 0; min returns its second argument for a NaN, from 0 * inf.
LANES_INLINE vfloat v_weight(vfloat x, vfloat qw, vfloat energy) {
    const vfloat limit       = v_set1(FLT_MAX);
    const vfloat weight      = v_mul(qw, _mm512_sqrt_ps(v_add(energy, v_mul(x, x))));
    const __mmask16 finite   = _mm512_cmp_ps_mask(v_abs(x), limit, _CMP_LE_OQ);
    const __mmask16 positive = _mm512_mask_cmp_ps_mask(finite, qw, v_zero(), _CMP_GT_OQ);
    const __mmask16 usable   = _mm512_mask_cmp_ps_mask(positive, qw, limit, _CMP_LE_OQ);
    return _mm512_maskz_mov_ps(usable, v_min(weight, limit));
}

#include "rocmfpx-quantize-lanes.h"

const rocmfpx_steps * rocmfpx_steps_avx512(void) {
    return __builtin_cpu_supports("avx512f") ? &lanes_steps : NULL;
}

#else

const rocmfpx_steps * rocmfpx_steps_avx512(void) {
    return NULL;
}

#endif
