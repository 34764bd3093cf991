#pragma once

// Owns: how a device reads ROCmFPX blocks: unaligned words, scale bytes, codes to int8 levels. Byte permutes where
// the machine has them (v_perm_b32, PRMT), plain shifts elsewhere; the results are the same bytes.
// Layouts are drawn in ggml-rocmfpx.h.

#include "common.cuh"
#include "ggml-rocmfpx.h"

#include <cstdint>

// Four int8 in a word, the lowest index in the lowest byte: operands of dp4a and of the matrix instructions.

// Layout of a type: bytes of codes, bytes of a block, scale bytes.
template <ggml_type type> struct rocmfpx_layout;
#define ROCMFPX_CUDA_LAYOUT(id, suffix, stem, name, bytes)                                                             \
    template <> struct rocmfpx_layout<GGML_TYPE_##suffix> {                                                            \
        using block                      = block_##stem;                                                               \
        static constexpr int block_bytes = sizeof(block);                                                              \
        static constexpr int scales      = sizeof(block::scale);                                                       \
        static constexpr int code_bytes  = block_bytes - scales;                                                       \
    };
ROCMFPX_TYPES(ROCMFPX_CUDA_LAYOUT)

// The low word of high:low >> bits, bits < 32.
static __device__ __forceinline__ uint32_t rocmfpx_shift_right(uint32_t high, uint32_t low, uint32_t bits) {
#if defined(GGML_USE_HIP) || defined(GGML_USE_MUSA)
    return (uint32_t) (((uint64_t) high << 32 | low) >> bits);
#else
    return __funnelshift_r(low, high, bits);
#endif
}

// n words from any address. NVIDIA has aligned loads only: the words around, shifted. No byte of a word that holds
// none of the n is touched, so the end of a buffer is safe.
template <int n> static __device__ __forceinline__ void rocmfpx_load_words(const uint8_t * x, uint32_t * out) {
#if defined(GGML_USE_HIP)
    memcpy(out, x, 4 * n);
#else
    const uint32_t offset   = (uint32_t) ((uintptr_t) x & 3);
    const uint32_t * around = (const uint32_t *) (x - offset);
    uint32_t low            = around[0];
#pragma unroll
    for (int i = 0; i < n; ++i) {
        const uint32_t high = i + 1 < n || offset != 0 ? around[i + 1] : 0;
        out[i]              = rocmfpx_shift_right(high, low, 8 * offset);
        low                 = high;
    }
#endif
}

// A scale byte is the exponent and mantissa of a half: times 2^7 it is exact. Invalid bytes are 0 on every device.
static __device__ __forceinline__ float rocmfpx_scale(uint8_t e) {
    const float scale = __half2float(__ushort_as_half((unsigned short) (e << 7))) * 128.0f;
    return e <= ROCMFPX_SCALE_MAX ? scale : 0.0f;
}

// Bytes of the eight in `high:low` picked by the lowest three bits of each nibble of `pick`, of which the lowest 16
// bits count. Bit 3 of a nibble must be 0.
static __device__ __forceinline__ uint32_t rocmfpx_pick_nibbles(uint32_t low, uint32_t high, uint32_t pick) {
#if defined(GGML_USE_HIP)
    const uint32_t bytes = (pick & 0x00ff) | (pick & 0xff00) << 8;
    return __builtin_amdgcn_perm(high, low, (bytes & 0x000f000f) | (bytes & 0x00f000f0) << 4);
#elif defined(GGML_USE_MUSA)
    const uint64_t table = (uint64_t) high << 32 | low;
    uint32_t out         = 0;
    for (int i = 0; i < 4; ++i) {
        out |= (uint32_t) (table >> 8 * (pick >> 4 * i & 7) & 255) << 8 * i;
    }
    return out;
#else
    return __byte_perm(low, high, pick);
#endif
}

// Levels of four codes, one in the lowest bits of each byte.
static __device__ __forceinline__ uint32_t rocmfpx_pick_bytes(uint32_t low, uint32_t high, uint32_t pick) {
#if defined(GGML_USE_HIP)
    return __builtin_amdgcn_perm(high, low, pick);
#else
    const uint32_t pairs = pick | pick >> 4;
    return rocmfpx_pick_nibbles(low, high, (pairs & 0xff) | (pairs >> 8 & 0xff00));
#endif
}

// Levels by code, code 0 in the lowest byte; shifted: levels times 2^shift.
#define ROCMFPX_FP2_TABLE      0x020100ffu // -1, 0, 1, 2
#define ROCMFPX_FP3_POSITIVE   0x04020100u // 0, 1, 2, 4
#define ROCMFPX_FP3_NEGATIVE   0xfcfeff00u // 0, -1, -2, -4
#define ROCMFPX_FP4_POSITIVE_0 0x03020100u // 0, 1, 2, 3
#define ROCMFPX_FP4_POSITIVE_4 0x0a080604u // 4, 6, 8, 10
#define ROCMFPX_FP4_NEGATIVE_0 0xfdfeff00u // 0, -1, -2, -3
#define ROCMFPX_FP4_NEGATIVE_4 0xf6f8fafcu // -4, -6, -8, -10
static constexpr __device__ __forceinline__ uint32_t rocmfpx_shifted(uint32_t levels, int shift) {
    return levels << shift & 0x01010101u * (uint32_t) (0xff << shift & 0xff);
}

// Eight 2-bit codes in the lowest 16 bits to two words of levels.
template <int shift> static __device__ __forceinline__ void rocmfpx_levels_fp2(uint32_t x, uint32_t * out) {
    constexpr uint32_t table = rocmfpx_shifted(ROCMFPX_FP2_TABLE, shift);

    x      = (x | x << 8) & 0x00ff00ff;
    x      = (x | x << 4) & 0x0f0f0f0f;
    x      = (x | x << 2) & 0x33333333;
    out[0] = rocmfpx_pick_nibbles(table, table, x);
    out[1] = rocmfpx_pick_nibbles(table, table, x >> 16);
}

// Eight 3-bit codes in the lowest 24 bits to two words of levels.
template <int shift> static __device__ __forceinline__ void rocmfpx_levels_fp3(uint32_t x, uint32_t * out) {
    constexpr uint32_t positive = rocmfpx_shifted(ROCMFPX_FP3_POSITIVE, shift);
    constexpr uint32_t negative = rocmfpx_shifted(ROCMFPX_FP3_NEGATIVE, shift);

    x      = (x & 0x00000fff) | (x & 0x00fff000) << 4;
    x      = (x & 0x003f003f) | (x & 0x0fc00fc0) << 2;
    x      = (x & 0x07070707) | (x & 0x38383838) << 1;
    out[0] = rocmfpx_pick_nibbles(positive, negative, x);
    out[1] = rocmfpx_pick_nibbles(positive, negative, x >> 16);
}

// Eight 4-bit codes to levels of the low nibbles (out[0]) and of the high nibbles (out[1]).
template <int shift> static __device__ __forceinline__ void rocmfpx_levels_fp4(uint32_t x, uint32_t * out) {
    constexpr uint32_t positive_0 = rocmfpx_shifted(ROCMFPX_FP4_POSITIVE_0, shift);
    constexpr uint32_t positive_4 = rocmfpx_shifted(ROCMFPX_FP4_POSITIVE_4, shift);
    constexpr uint32_t negative_0 = rocmfpx_shifted(ROCMFPX_FP4_NEGATIVE_0, shift);
    constexpr uint32_t negative_4 = rocmfpx_shifted(ROCMFPX_FP4_NEGATIVE_4, shift);
#if defined(GGML_USE_HIP)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint32_t code      = x >> 4 * half;
        const uint32_t magnitude = code & 0x07070707;
        const uint32_t positive  = rocmfpx_pick_bytes(positive_0, positive_4, magnitude);
        const uint32_t negative  = rocmfpx_pick_bytes(negative_0, negative_4, magnitude);
        out[half]                = rocmfpx_pick_bytes(positive, negative, 0x03020100 | (code & 0x08080808) >> 1);
    }
#else
    const uint32_t magnitude = x & 0x77777777;
    const uint32_t side      = 0x32103210 | (x & 0x88888888) >> 1;
    uint32_t mixed[2]; // weights 0, 16, 1, 17 and 2, 18, 3, 19
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t pick     = magnitude >> 16 * i;
        const uint32_t positive = rocmfpx_pick_nibbles(positive_0, positive_4, pick);
        const uint32_t negative = rocmfpx_pick_nibbles(negative_0, negative_4, pick);
        mixed[i]                = rocmfpx_pick_nibbles(positive, negative, side >> 16 * i);
    }
    out[0] = rocmfpx_pick_nibbles(mixed[0], mixed[1], 0x6420);
    out[1] = rocmfpx_pick_nibbles(mixed[0], mixed[1], 0x7531);
#endif
}

// Four 6-bit codes in the lowest 24 bits to one word of levels. No borrow crosses a byte: the top bit of each is set
// before the subtraction and flipped after it. Code 32, a negative zero, gives 0.
template <int shift> static __device__ __forceinline__ uint32_t rocmfpx_levels_fp6(uint32_t x) {
    x                        = (x & 0x00000fff) | (x & 0x00fff000) << 4;
    x                        = (x & 0x003f003f) | (x & 0x0fc00fc0) << 2;
    const uint32_t sign      = x & 0x20202020;
    const uint32_t magnitude = x & 0x1f1f1f1f;
    const uint32_t negative  = magnitude & (sign - (sign >> 5));
    return rocmfpx_shifted((((magnitude ^ negative) | 0x80808080) - negative) ^ 0x80808080, shift);
}

// Half `h` of a block, 16 levels in four words: weights 16h .. 16h+15; of the two FP4 types, whose nibbles hold
// weights i and i+16, words 0 and 1 are weights 8h .. 8h+7 and words 2 and 3 weights 16+8h .. 16+8h+7.
// Levels come times 2^shift; FP8's leave no room for it.
template <ggml_type type, int shift = 0>
static __device__ __forceinline__ void rocmfpx_half_levels(const uint8_t * block, int h, uint32_t * out) {
    if constexpr (type == GGML_TYPE_Q2_0_ROCMFP2) {
        uint32_t w;
        rocmfpx_load_words<1>(block + 4 * h, &w);
        rocmfpx_levels_fp2<shift>(w & 0xffff, out);
        rocmfpx_levels_fp2<shift>(w >> 16, out + 2);
    } else if constexpr (type == GGML_TYPE_Q3_0_ROCMFPX) {
        uint32_t w[2]; // two bytes too many: the other half or the scales
        rocmfpx_load_words<2>(block + 6 * h, w);
        rocmfpx_levels_fp3<shift>(w[0] & 0xffffff, out);
        rocmfpx_levels_fp3<shift>((w[0] >> 24 | w[1] << 8) & 0xffffff, out + 2);
    } else if constexpr (type == GGML_TYPE_Q6_0_ROCMFPX) {
        uint32_t w[3];
        rocmfpx_load_words<3>(block + 12 * h, w);
        out[0] = rocmfpx_levels_fp6<shift>(w[0] & 0xffffff);
        out[1] = rocmfpx_levels_fp6<shift>((w[0] >> 24 | w[1] << 8) & 0xffffff);
        out[2] = rocmfpx_levels_fp6<shift>((w[1] >> 16 | w[2] << 16) & 0xffffff);
        out[3] = rocmfpx_levels_fp6<shift>(w[2] >> 8);
    } else if constexpr (type == GGML_TYPE_Q8_0_ROCMFPX) {
        static_assert(shift == 0, "no room");
        rocmfpx_load_words<4>(block + 16 * h, out);
    } else {
        uint32_t w[2], first[2], second[2];
        rocmfpx_load_words<2>(block + 8 * h, w);
        rocmfpx_levels_fp4<shift>(w[0], first);
        rocmfpx_levels_fp4<shift>(w[1], second);
        out[0] = first[0];
        out[1] = second[0];
        out[2] = first[1];
        out[3] = second[1];
    }
}

// Index of the first of the four weights in word w of half h, as laid out by rocmfpx_half_levels.
template <ggml_type type> static constexpr __device__ int rocmfpx_first_weight(int h, int w) {
    const bool nibbles = type == GGML_TYPE_Q4_0_ROCMFP4 || type == GGML_TYPE_Q4_0_ROCMFP4_FAST;
    return nibbles ? 16 * (w / 2) + 8 * h + 4 * (w % 2) : 16 * h + 4 * w;
}

// The scale of weight i.
template <ggml_type type> static __device__ __forceinline__ float rocmfpx_block_scale(const uint8_t * block, int i) {
    return rocmfpx_scale(block[rocmfpx_layout<type>::code_bytes + (rocmfpx_layout<type>::scales == 2 ? i / 16 : 0)]);
}
