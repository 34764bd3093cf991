// Owns: quantising with 4 scales at a time. Every 64-bit Arm processor has these instructions.

#include "rocmfpx-codec.h"

#if defined(__GNUC__) && defined(__aarch64__)

#include <arm_neon.h>
#include <float.h>

#define LANES          4
#define LANES_FUNCTION static
#define LANES_INLINE   static inline __attribute__((always_inline))

typedef float32x4_t vfloat;

LANES_INLINE vfloat v_load(const float * p) {
    return vld1q_f32(p);
}
LANES_INLINE void v_store(vfloat a, float * p) {
    vst1q_f32(p, a);
}
LANES_INLINE void v_store_int(vfloat a, int32_t * p) {
    vst1q_s32(p, vcvtq_s32_f32(a));
}
LANES_INLINE vfloat v_set1(float a) {
    return vdupq_n_f32(a);
}
LANES_INLINE vfloat v_zero(void) {
    return vdupq_n_f32(0.0f);
}
LANES_INLINE vfloat v_add(vfloat a, vfloat b) {
    return vaddq_f32(a, b);
}
LANES_INLINE vfloat v_sub(vfloat a, vfloat b) {
    return vsubq_f32(a, b);
}
LANES_INLINE vfloat v_mul(vfloat a, vfloat b) {
    return vmulq_f32(a, b);
}
LANES_INLINE vfloat v_min(vfloat a, vfloat b) {
    return vminq_f32(a, b);
}
LANES_INLINE vfloat v_max(vfloat a, vfloat b) {
    return vmaxq_f32(a, b);
}
LANES_INLINE vfloat v_abs(vfloat a) {
    return vabsq_f32(a);
}
LANES_INLINE vfloat v_keep(uint32x4_t mask, vfloat a) {
    return vreinterpretq_f32_u32(vandq_u32(mask, vreinterpretq_u32_f32(a)));
}
LANES_INLINE vfloat v_keep_below(vfloat a, vfloat b, float limit) {
    return v_keep(vcltq_f32(b, v_set1(limit)), a);
}
LANES_INLINE vfloat v_finite(vfloat a) {
    return v_keep(vcleq_f32(v_abs(a), v_set1(FLT_MAX)), a);
}
LANES_INLINE float v_sum(vfloat a) {
    return vaddvq_f32(a);
}
LANES_INLINE float v_least(vfloat a) {
    return vminvq_f32(a);
}
LANES_INLINE float v_greatest(vfloat a) {
    return vmaxvq_f32(a);
}
LANES_INLINE bool v_all_above(vfloat a, float limit) {
    return vminvq_u32(vcgtq_f32(a, v_set1(limit))) != 0;
}
LANES_INLINE unsigned v_lanes_equal(vfloat a, float value) {
    static const uint32_t bits[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vceqq_f32(a, v_set1(value)), vld1q_u32(bits)));
}

LANES_INLINE vfloat v_round_away(vfloat a) {
    return vrndaq_f32(a);
}

LANES_INLINE vfloat v_select_above(vfloat q, float limit, vfloat above, vfloat below) {
    return vbslq_f32(vcgtq_f32(q, v_set1(limit)), above, below);
}

LANES_INLINE vfloat v_product_fp2(vfloat q, vfloat scale) {
    vfloat p = v_select_above(q, -0.5f, v_zero(), v_sub(v_zero(), scale));
    p        = v_select_above(q, 0.5f, scale, p);
    return v_select_above(q, 1.5f, v_add(scale, scale), p);
}

LANES_INLINE vfloat v_product_fp3(vfloat q, vfloat scale) {
    vfloat p = v_select_above(q, 0.5f, scale, v_zero());
    p        = v_select_above(q, 1.5f, v_add(scale, scale), p);
    return v_select_above(q, 3.0f, v_mul(scale, v_set1(4.0f)), p);
}

// Steps of one up to 4, of two up to 10; halves of a step go down. The subtractions are exact where it counts.
LANES_INLINE vfloat v_product_fp4(vfloat q, vfloat scale) {
    const vfloat half  = v_set1(0.5f);
    const vfloat a     = v_min(q, v_set1(10.0f));
    const vfloat ones  = vrndpq_f32(v_sub(a, half));
    const vfloat pairs = vrndpq_f32(v_sub(v_mul(a, half), half));
    return v_mul(v_select_above(q, 3.5f, v_add(pairs, pairs), ones), scale);
}

// A weight for each usable pair of x and qw, else 0. A NaN, from 0 * inf, is never usable.
LANES_INLINE vfloat v_weight(vfloat x, vfloat qw, vfloat energy) {
    const vfloat limit        = v_set1(FLT_MAX);
    const vfloat weight       = v_mul(qw, vsqrtq_f32(v_add(energy, v_mul(x, x))));
    const uint32x4_t positive = vandq_u32(vcgtq_f32(qw, v_zero()), vcleq_f32(qw, limit));
    return v_keep(vandq_u32(positive, vcleq_f32(v_abs(x), limit)), v_min(weight, limit));
}

#include "rocmfpx-quantize-lanes.h"

const rocmfpx_steps * rocmfpx_steps_neon(void) {
    return &lanes_steps;
}

#else

const rocmfpx_steps * rocmfpx_steps_neon(void) {
    return NULL;
}

#endif
