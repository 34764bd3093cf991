// Owns: dot products of packed rows with NEON and the dot-product extension, 128 weights a step.
// Bit streams: table lookups bring the byte a code starts in, and the next one, to the code's place; shifts by
// a count for each byte bring the two parts together.

#include "dot.h"

#if defined(__aarch64__) && defined(__GNUC__)

#include <arm_neon.h>
#include <string.h>

#define NEON   __attribute__((target("arch=armv8.2-a+dotprod")))
#define INLINE NEON static inline __attribute__((always_inline))

#define Q8_BYTES 34
#define STEP     4 // blocks

typedef struct {
    int block_bytes;
    int code_bytes;
    bool two_scales;
    bool scale_first;
    void (*levels)(const uint8_t * x, int8x16_t * level); // of weights 0..15 and 16..31
} packed;

#define TWICE(...) __VA_ARGS__, __VA_ARGS__

// n bytes and zeros.
INLINE uint8x16_t load(const uint8_t * x, int n) {
    uint8_t bytes[16] = {0};
    memcpy(bytes, x, (size_t) n);
    return vld1q_u8(bytes);
}

INLINE void levels_fp2(const uint8_t * x, int8x16_t * level) {
    static const uint8_t from[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
    static const int8_t right[16] = {TWICE(TWICE(0, -2, -4, -6))};
    const uint8x16_t codes        = load(x, 8);
    for (int h = 0; h < 2; ++h) {
        const uint8x16_t byte = vqtbl1q_u8(codes, vaddq_u8(vld1q_u8(from), vdupq_n_u8((uint8_t) (4 * h))));
        const uint8x16_t code = vandq_u8(vshlq_u8(byte, vld1q_s8(right)), vdupq_n_u8(3));
        level[h]              = vsubq_s8(vreinterpretq_s8_u8(code), vdupq_n_s8(ROCMFP2_BIAS));
    }
}

// Codes that start in byte from[i] of x; rubbish above the code.
INLINE uint8x16_t stream(uint8x16_t x, const uint8_t * from, const int8_t * right) {
    const uint8x16_t at   = vld1q_u8(from);
    const int8x16_t shift = vld1q_s8(right);
    const uint8x16_t low  = vshlq_u8(vqtbl1q_u8(x, at), shift);
    const uint8x16_t high = vshlq_u8(vqtbl1q_u8(x, vaddq_u8(at, vdupq_n_u8(1))), vaddq_s8(shift, vdupq_n_s8(8)));
    return vorrq_u8(low, high);
}

INLINE void levels_fp3(const uint8_t * x, int8x16_t * level) {
    static const uint8_t from[16]   = {0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5};
    static const int8_t right[16]   = {TWICE(0, -3, -6, -1, -4, -7, -2, -5)};
    static const int8_t by_code[16] = {TWICE(0, 1, 2, 4, 0, -1, -2, -4)};
    for (int h = 0; h < 2; ++h) {
        const uint8x16_t code = stream(load(x + 6 * h, 6), from, right);
        level[h]              = vqtbl1q_s8(vld1q_s8(by_code), vandq_u8(code, vdupq_n_u8(7)));
    }
}

INLINE void levels_fp4(const uint8_t * x, int8x16_t * level) {
    static const int8_t by_code[16] = ROCMFP4_LEVELS;
    const uint8x16_t codes          = vld1q_u8(x);
    level[0]                        = vqtbl1q_s8(vld1q_s8(by_code), vandq_u8(codes, vdupq_n_u8(15)));
    level[1]                        = vqtbl1q_s8(vld1q_s8(by_code), vshrq_n_u8(codes, 4));
}

INLINE void levels_fp6(const uint8_t * x, int8x16_t * level) {
    static const uint8_t from[16] = {0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11};
    static const int8_t right[16] = {TWICE(TWICE(0, -6, -4, -2))};
    for (int h = 0; h < 2; ++h) {
        const uint8x16_t code     = stream(load(x + 12 * h, 12), from, right);
        const int8x16_t magnitude = vreinterpretq_s8_u8(vandq_u8(code, vdupq_n_u8(31)));
        level[h]                  = vbslq_s8(vtstq_u8(code, vdupq_n_u8(32)), vnegq_s8(magnitude), magnitude);
    }
}

INLINE void levels_fp8(const uint8_t * x, int8x16_t * level) {
    level[0] = vreinterpretq_s8_u8(vld1q_u8(x));
    level[1] = vreinterpretq_s8_u8(vld1q_u8(x + 16));
}

// S / 128 of four scale bytes.
INLINE float32x4_t decode_scales(uint32_t bytes) {
    const uint16x4_t words = vget_low_u16(vmovl_u8(vcreate_u8(bytes)));
    const uint16x4_t valid = vcle_u16(words, vdup_n_u16(ROCMFPX_SCALE_MAX));
    return vcvt_f32_f16(vreinterpret_f16_u16(vshl_n_u16(vand_u16(words, valid), 7)));
}

INLINE int32x4_t sum_fours(const int32x4_t * p) {
    return vpaddq_s32(vpaddq_s32(p[0], p[1]), vpaddq_s32(p[2], p[3]));
}

// The float terms of n blocks, n <= STEP.
INLINE float32x4_t four_terms(const packed * f, const uint8_t * x, const uint8_t * y, int n) {
    int32x4_t sums0[STEP];
    int32x4_t sums1[STEP];
    uint32_t scale0 = 0;
    uint32_t scale1 = 0;
    uint64_t halves = 0;
    for (int b = 0; b < STEP; ++b) {
        sums0[b] = sums1[b] = vdupq_n_s32(0);
        if (b < n) {
            const uint8_t * block = x + b * f->block_bytes;
            const int8_t * q      = (const int8_t *) y + b * Q8_BYTES + 2;
            int8x16_t level[2];
            f->levels(block, level);
            sums0[b] = vdotq_s32(sums0[b], level[0], vld1q_s8(q));
            sums1[b] = vdotq_s32(sums1[b], level[1], vld1q_s8(q + 16));
            uint16_t half;
            memcpy(&half, y + b * Q8_BYTES, sizeof(half));
            halves |= (uint64_t) half << (16 * b);
            scale0 |= (uint32_t) block[f->code_bytes] << (8 * b);
            scale1 |= f->two_scales ? (uint32_t) block[f->code_bytes + 1] << (8 * b) : 0;
        }
    }

    const float32x4_t d  = vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(halves))), 128.0f);
    const float32x4_t s0 = decode_scales(scale0);
    const float32x4_t s1 = decode_scales(scale1);
    const int32x4_t i0   = sum_fours(sums0);
    const int32x4_t i1   = sum_fours(sums1);
    if (!f->two_scales) {
        return vmulq_f32(vmulq_f32(s0, d), vcvtq_f32_s32(vaddq_s32(i0, i1)));
    }
    if (f->scale_first) {
        return vaddq_f32(vmulq_f32(vmulq_f32(s0, d), vcvtq_f32_s32(i0)),
                         vmulq_f32(vmulq_f32(s1, d), vcvtq_f32_s32(i1)));
    }
    return vmulq_f32(d, vaddq_f32(vmulq_f32(s0, vcvtq_f32_s32(i0)), vmulq_f32(s1, vcvtq_f32_s32(i1))));
}

INLINE float dot(const packed * f, int64_t n_blocks, const uint8_t * x, const uint8_t * y) {
    float terms[STEP];
    float sum = 0.0f;
    for (int64_t b = 0; b < n_blocks; b += STEP) {
        const int n = n_blocks - b < STEP ? (int) (n_blocks - b) : STEP;
        vst1q_f32(terms, n == STEP ? four_terms(f, x, y, STEP) : four_terms(f, x, y, n));
        for (int i = 0; i < n; ++i) {
            sum += terms[i];
        }
        x += STEP * f->block_bytes;
        y += STEP * Q8_BYTES;
    }
    return sum;
}

#define DEFINE_DOT(stem, block, codes, two, first_scale, levels)                                                       \
    NEON static float dot_##stem(int64_t n_blocks, const uint8_t * x, const uint8_t * y) {                             \
        const packed f = {block, codes, two, first_scale, levels};                                                     \
        return dot(&f, n_blocks, x, y);                                                                                \
    }

DEFINE_DOT(fp4, 18, 16, true, true, levels_fp4)
DEFINE_DOT(fp4_fast, 17, 16, false, true, levels_fp4)
DEFINE_DOT(fp6, 26, 24, true, false, levels_fp6)
DEFINE_DOT(fp8, 33, 32, false, true, levels_fp8)
DEFINE_DOT(fp3, 14, 12, true, false, levels_fp3)
DEFINE_DOT(fp2, 10, 8, true, false, levels_fp2)

const rocmfpx_dot rocmfpx_dot_neon[ROCMFPX_FORMATS] = {dot_fp4, dot_fp4_fast, dot_fp6, dot_fp8, dot_fp3, dot_fp2};
#endif
