// Stand-in for ROCm's header of this name, which the HIP headers of Debian 12 lack: enough to compile ggml-cuda.
// Only reports are made with it, nothing is linked or run.
#pragma once

#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

struct __hip_bfloat16 {
    unsigned short x;

    __host__ __device__ __hip_bfloat16() = default;

    __host__ __device__ __hip_bfloat16(float value) {
        unsigned bits;
        __builtin_memcpy(&bits, &value, sizeof(bits));
        const unsigned rounded = bits + 0x7fffu + ((bits >> 16) & 1u); // to nearest, ties to even
        x = value != value ? 0x7fc0u : (unsigned short) (rounded >> 16);
    }

    // integers, double and half by way of float
    template <typename T, typename = decltype(static_cast<float>(T{}))>
    __host__ __device__ explicit __hip_bfloat16(T value) : __hip_bfloat16(static_cast<float>(value)) {}

    __host__ __device__ operator float() const {
        const unsigned bits = (unsigned) x << 16;
        float value;
        __builtin_memcpy(&value, &bits, sizeof(value));
        return value;
    }
};

struct __hip_bfloat162 {
    __hip_bfloat16 x;
    __hip_bfloat16 y;
};

static inline __host__ __device__ float __bfloat162float(__hip_bfloat16 a) {
    return a;
}

static inline __host__ __device__ __hip_bfloat16 __float2bfloat16(float a) {
    return __hip_bfloat16(a);
}

static inline __host__ __device__ __hip_bfloat162 __float22bfloat162_rn(float2 a) {
    __hip_bfloat162 pair;
    pair.x = __hip_bfloat16(a.x);
    pair.y = __hip_bfloat16(a.y);
    return pair;
}

static inline __host__ __device__ float2 __bfloat1622float2(__hip_bfloat162 a) {
    return make_float2(a.x, a.y);
}

static inline __host__ __device__ __hip_bfloat16 __low2bfloat16(__hip_bfloat162 a) {
    return a.x;
}

static inline __host__ __device__ __hip_bfloat16 __high2bfloat16(__hip_bfloat162 a) {
    return a.y;
}
