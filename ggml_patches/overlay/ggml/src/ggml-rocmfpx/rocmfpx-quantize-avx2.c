// Owns: quantising with 8 scales at a time. Called only where the processor has AVX2.

#include "rocmfpx-codec.h"

#if defined(__GNUC__) && defined(__x86_64__)

#include <float.h>
#include <immintrin.h>

#define LANES          8
#define LANES_FUNCTION static __attribute__((target("avx2")))
#define LANES_INLINE   static inline __attribute__((always_inline, target("avx2")))

typedef __m256 vfloat;

LANES_INLINE vfloat v_load(const float * p) {
    return _mm256_loadu_ps(p);
}
LANES_INLINE void v_store(vfloat a, float * p) {
    _mm256_storeu_ps(p, a);
}
LANES_INLINE void v_store_int(vfloat a, int32_t * p) {
    _mm256_storeu_si256((__m256i *) p, _mm256_cvttps_epi32(a));
}
LANES_INLINE vfloat v_set1(float a) {
    return _mm256_set1_ps(a);
}
LANES_INLINE vfloat v_zero(void) {
    return _mm256_setzero_ps();
}
LANES_INLINE vfloat v_add(vfloat a, vfloat b) {
    return _mm256_add_ps(a, b);
}
LANES_INLINE vfloat v_sub(vfloat a, vfloat b) {
    return _mm256_sub_ps(a, b);
}
LANES_INLINE vfloat v_mul(vfloat a, vfloat b) {
    return _mm256_mul_ps(a, b);
}
LANES_INLINE vfloat v_min(vfloat a, vfloat b) {
    return _mm256_min_ps(a, b);
}
LANES_INLINE vfloat v_max(vfloat a, vfloat b) {
    return _mm256_max_ps(a, b);
}
LANES_INLINE vfloat v_abs(vfloat a) {
    return _mm256_andnot_ps(v_set1(-0.0f), a);
}
LANES_INLINE vfloat v_keep_below(vfloat a, vfloat b, float limit) {
    return _mm256_and_ps(_mm256_cmp_ps(b, v_set1(limit), _CMP_LT_OQ), a);
}
LANES_INLINE vfloat v_finite(vfloat a) {
    return _mm256_and_ps(_mm256_cmp_ps(v_abs(a), v_set1(FLT_MAX), _CMP_LE_OQ), a);
}
LANES_INLINE float v_first(__m128 a) {
    return _mm_cvtss_f32(a);
}
LANES_INLINE float v_sum(vfloat a) {
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b        = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return v_first(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
LANES_INLINE float v_least(vfloat a) {
    __m128 b = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b        = _mm_min_ps(b, _mm_movehl_ps(b, b));
    return v_first(_mm_min_ss(b, _mm_movehdup_ps(b)));
}
LANES_INLINE float v_greatest(vfloat a) {
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b        = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return v_first(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
LANES_INLINE bool v_all_above(vfloat a, float limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, v_set1(limit), _CMP_GT_OQ)) == 0xff;
}
LANES_INLINE unsigned v_lanes_equal(vfloat a, float value) {
    return (unsigned) _mm256_movemask_ps(_mm256_cmp_ps(a, v_set1(value), _CMP_EQ_OQ));
}

// The largest float below one half: q + 0.5f itself would carry 0.49999997 up to 1.
LANES_INLINE vfloat v_round_away(vfloat a) {
    return _mm256_round_ps(v_add(a, v_set1(0x1.fffffep-2f)), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}

LANES_INLINE vfloat v_select_above(vfloat q, float limit, vfloat above, vfloat below) {
    return _mm256_blendv_ps(below, above, _mm256_cmp_ps(q, v_set1(limit), _CMP_GT_OQ));
}

LANES_INLINE vfloat v_product_fp2(vfloat q, vfloat scale) {
    vfloat p = v_select_above(q, -0.5f, v_zero(), v_sub(v_zero(), scale));
    p        = v_select_above(q, 0.5f, scale, p);
    return v_select_above(q, 1.5f, v_add(scale, scale), p);
}

LANES_INLINE vfloat v_product_fp3(vfloat q, vfloat scale) {
    vfloat p = _mm256_and_ps(_mm256_cmp_ps(q, v_set1(0.5f), _CMP_GT_OQ), scale);
    p        = v_select_above(q, 1.5f, v_add(scale, scale), p);
    return v_select_above(q, 3.0f, v_mul(scale, v_set1(4.0f)), p);
}

// Steps of one up to 4, of two up to 10; halves of a step go down. The subtractions are exact where it counts.
LANES_INLINE vfloat v_product_fp4(vfloat q, vfloat scale) {
    const vfloat half  = v_set1(0.5f);
    const vfloat a     = v_min(q, v_set1(10.0f));
    const vfloat ones  = _mm256_ceil_ps(v_sub(a, half));
    const vfloat pairs = _mm256_ceil_ps(v_sub(v_mul(a, half), half));
    return v_mul(v_select_above(q, 3.5f, v_add(pairs, pairs), ones), scale);
}

// A weight for each usable pair of x and qw, else 0; min returns its second argument for a NaN, from 0 * inf.
LANES_INLINE vfloat v_weight(vfloat x, vfloat qw, vfloat energy) {
    const vfloat limit  = v_set1(FLT_MAX);
    const vfloat weight = v_mul(qw, _mm256_sqrt_ps(v_add(energy, v_mul(x, x))));
    const vfloat positive =
        _mm256_and_ps(_mm256_cmp_ps(qw, v_zero(), _CMP_GT_OQ), _mm256_cmp_ps(qw, limit, _CMP_LE_OQ));
    const vfloat usable = _mm256_and_ps(positive, _mm256_cmp_ps(v_abs(x), limit, _CMP_LE_OQ));
    return _mm256_and_ps(usable, v_min(weight, limit));
}

#include "rocmfpx-quantize-lanes.h"

const rocmfpx_steps * rocmfpx_steps_avx2(void) {
    return __builtin_cpu_supports("avx2") ? &lanes_steps : NULL;
}

#else

const rocmfpx_steps * rocmfpx_steps_avx2(void) {
    return NULL;
}

#endif
