#pragma once

// Owns: the default encoder of the ROCmFPX types on a device, equal to quantize_row_<stem>_ref bit for bit.
// A group of 32 threads encodes a block: every thread sums the errors of four scale bytes in index order.
//
// Bytes depend on each rounding, and CUDA files are compiled with fast math: flushed subnormals, contracted
// products, approximate division. The float operations that matter are therefore spelled out below.

#include "common.cuh"
#include "convert.cuh"
#include "rocmfpx-decode.cuh"

#include <cfloat>
#include <cstdint>

#if defined(GGML_USE_HIP) || defined(GGML_USE_MUSA)
static __device__ __forceinline__ float rocmfpx_mul(float a, float b) {
#pragma clang fp contract(off)
    return a * b;
}
static __device__ __forceinline__ float rocmfpx_add(float a, float b) {
#pragma clang fp contract(off)
    return a + b;
}
static __device__ __forceinline__ float rocmfpx_sub(float a, float b) {
#pragma clang fp contract(off)
    return a - b;
}
static __device__ __forceinline__ float rocmfpx_div(float a, float b) {
#pragma clang fp contract(off)
    return a / b;
}
#else
#define ROCMFPX_EXACT(name, op)                                                                                        \
    static __device__ __forceinline__ float rocmfpx_##name(float a, float b) {                                         \
        float y;                                                                                                       \
        asm(op ".rn.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));                                                      \
        return y;                                                                                                      \
    }
ROCMFPX_EXACT(mul, "mul")
ROCMFPX_EXACT(add, "add")
ROCMFPX_EXACT(sub, "sub")
ROCMFPX_EXACT(div, "div")
#endif

// Floats that are not negative compare as their bits, subnormals included.
static __device__ __forceinline__ uint32_t rocmfpx_bits(float x) {
    return __float_as_uint(x);
}

// What is not finite is encoded as 0 is, and adds as little to an error.
static __device__ __forceinline__ float rocmfpx_finite(float x) {
    return (rocmfpx_bits(x) & 0x7f800000) != 0x7f800000 ? x : 0.0f;
}

// Nearest integer of a >= 0, halves up; a - whole is exact.
static __device__ __forceinline__ float rocmfpx_round(float a) {
    const float whole = truncf(a);
    return a - whole >= 0.5f ? whole + 1.0f : whole;
}

// Code and level of a weight times the rounded reciprocal of its scale.
struct rocmfpx_choice {
    int code;
    float level;
};

template <ggml_type type> static __device__ __forceinline__ rocmfpx_choice rocmfpx_choose(float q) {
    const float a       = fabsf(q);
    const bool negative = q < 0.0f;
    if constexpr (type == GGML_TYPE_Q2_0_ROCMFP2) {
        // distances as rounded floats: far out all four tie and code 0 wins, whatever the sign
        int code      = 0;
        float nearest = fabsf(rocmfpx_add(q, 1.0f));
#pragma unroll
        for (int i = 1; i < 4; ++i) {
            const float distance = fabsf(rocmfpx_sub(q, (float) (i - 1)));
            if (distance < nearest) {
                nearest = distance;
                code    = i;
            }
        }
        return {code, (float) (code - 1)};
    } else if constexpr (type == GGML_TYPE_Q3_0_ROCMFPX) {
        const int magnitude = a <= 0.5f ? 0 : a <= 1.5f ? 1 : a <= 3.0f ? 2 : 3;
        const float level   = magnitude == 3 ? 4.0f : (float) magnitude;
        return {negative && magnitude != 0 ? magnitude | 4 : magnitude, negative ? -level : level};
    } else if constexpr (type == GGML_TYPE_Q6_0_ROCMFPX) {
        const float level   = rocmfpx_round(fminf(a, 31.0f));
        const int magnitude = (int) level;
        return {negative && magnitude != 0 ? magnitude | 32 : magnitude, negative ? -level : level};
    } else if constexpr (type == GGML_TYPE_Q8_0_ROCMFPX) {
        const float level = rocmfpx_round(fminf(a, 127.0f));
        return {(int) (negative ? -level : level) & 255, negative ? -level : level};
    } else {
        const int magnitude = (a > 0.5f) + (a > 1.5f) + (a > 2.5f) + (a > 3.5f) + (a > 5.0f) + (a > 7.0f) + (a > 9.0f);
        const float level   = (float) (magnitude < 5 ? magnitude : 2 * magnitude - 4);
        return {negative && magnitude != 0 ? magnitude | 8 : magnitude, negative ? -level : level};
    }
}

// Bits of a code.
template <ggml_type type> static constexpr __device__ int rocmfpx_code_bits() {
    return rocmfpx_layout<type>::code_bytes / 4;
}

// The smaller of two pairs (error, byte) over the 32 threads, in all of them.
static __device__ __forceinline__ int rocmfpx_least(uint32_t error, int byte) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const uint32_t other_error = (uint32_t) __shfl_xor_sync(0xffffffff, (int) error, step, WARP_SIZE);
        const int other_byte       = __shfl_xor_sync(0xffffffff, byte, step, WARP_SIZE);
        if (other_error < error || (other_error == error && other_byte < byte)) {
            error = other_error;
            byte  = other_byte;
        }
    }
    return byte;
}

// Sum of squared errors of the group under scale byte e. Signs of zero do not matter: they are squared.
template <ggml_type type, int group>
static __device__ __forceinline__ uint32_t rocmfpx_group_error(const float * x, int e) {
    const float scale      = rocmfpx_scale((uint8_t) e);
    const float reciprocal = rocmfpx_div(1.0f, scale);
    float sum              = 0.0f;
#pragma unroll
    for (int i = 0; i < group; ++i) {
        const float level = rocmfpx_choose<type>(rocmfpx_mul(x[i], reciprocal)).level;
        const float d     = rocmfpx_sub(x[i], rocmfpx_mul(level, scale));
        sum               = rocmfpx_add(sum, rocmfpx_mul(d, d));
    }
    return rocmfpx_bits(sum);
}

// The scale byte of a group of finite weights, the same in all 32 threads.
template <ggml_type type, int group> static __device__ __forceinline__ int rocmfpx_fit(const float * x, int lane) {
    uint32_t max = 0;
#pragma unroll
    for (int i = 0; i < group; ++i) {
        const uint32_t magnitude = rocmfpx_bits(x[i]) & 0x7fffffff;
        max                      = magnitude > max ? magnitude : max;
    }
    float target = 0.0f;
    if constexpr (type == GGML_TYPE_Q8_0_ROCMFPX) {
        target = rocmfpx_div(__uint_as_float(max), 127.0f);
        max    = rocmfpx_bits(target);
    }
    if (max == 0) {
        return 0;
    }
    constexpr bool refuses_overflow = type == GGML_TYPE_Q4_0_ROCMFP4 || type == GGML_TYPE_Q4_0_ROCMFP4_FAST;

    uint32_t least = 0xffffffff;
    int best       = refuses_overflow ? 0 : 1;
#pragma unroll 1
    for (int e = 1 + lane; e <= ROCMFPX_SCALE_MAX; e += 32) {
        uint32_t error;
        if constexpr (type == GGML_TYPE_Q8_0_ROCMFPX) {
            error = rocmfpx_bits(rocmfpx_sub(rocmfpx_scale((uint8_t) e), target)) & 0x7fffffff;
        } else {
            error = rocmfpx_group_error<type, group>(x, e);
        }
        const bool eligible = !refuses_overflow || error < rocmfpx_bits(FLT_MAX);
        if (eligible && error < least) {
            least = error;
            best  = e;
        }
    }
    return rocmfpx_least(least, best);
}

// Encodes the 32 weights at x; the 32 threads of a group call it together.
template <ggml_type type, typename T>
static __device__ __forceinline__ void rocmfpx_encode_block(const T * __restrict__ x, uint8_t * __restrict__ y,
                                                            int lane) {
    constexpr int scales = rocmfpx_layout<type>::scales;
    constexpr int group  = QK_ROCMFPX / scales;
    constexpr int bits   = rocmfpx_code_bits<type>();
    constexpr int bytes  = rocmfpx_layout<type>::code_bytes;
    int byte[scales];
#pragma unroll
    for (int g = 0; g < scales; ++g) {
        float values[group];
#pragma unroll
        for (int i = 0; i < group; ++i) {
            values[i] = rocmfpx_finite(ggml_cuda_cast<float>(x[g * group + i]));
        }
        byte[g] = rocmfpx_fit<type, group>(values, lane);
    }
    const int scale_byte   = lane < group ? byte[0] : byte[scales - 1];
    const float reciprocal = scale_byte != 0 ? rocmfpx_div(1.0f, rocmfpx_scale((uint8_t) scale_byte)) : 0.0f;
    const float value      = rocmfpx_finite(ggml_cuda_cast<float>(x[lane]));
    const int code         = rocmfpx_choose<type>(rocmfpx_mul(value, reciprocal)).code;

    constexpr bool nibble_halves = type == GGML_TYPE_Q4_0_ROCMFP4 || type == GGML_TYPE_Q4_0_ROCMFP4_FAST;

    // byte `lane` of the stream: it starts in the code at place `first`
    const int first  = 8 * lane / bits;
    const int before = 8 * lane - first * bits;
    int packed       = 0;
#pragma unroll
    for (int i = 0; i <= (7 + bits - 1) / bits; ++i) {
        const int place = (first + i) % QK_ROCMFPX;
        const int c     = __shfl_sync(0xffffffff, code, nibble_halves ? place / 2 + place % 2 * 16 : place, WARP_SIZE);
        packed |= c << i * bits;
    }
    packed >>= before;
    if (lane < bytes) {
        y[lane] = (uint8_t) packed;
    }
    if (lane < scales) {
        y[bytes + lane] = (uint8_t) (lane == 0 ? byte[0] : byte[scales - 1]);
    }
}
