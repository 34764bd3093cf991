// The header of this name of HIP 5.2.3, with what later releases added and ggml-cuda uses.
#pragma once

#include_next <hip/hip_fp16.h>

static inline __device__ __half __hmax(__half a, __half b) {
    return __half(__builtin_fmaxf(static_cast<float>(a), static_cast<float>(b)));
}

static inline __device__ __half __hmin(__half a, __half b) {
    return __half(__builtin_fminf(static_cast<float>(a), static_cast<float>(b)));
}

// pairs travel between lanes as the 32 bits they are
template <typename To, typename From> static inline __device__ To lucebox_shim_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "a copy of bits keeps their number");
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}

static inline __device__ __half2 __shfl_xor(__half2 value, int mask, int width = 32) {
    return lucebox_shim_bits<__half2>(__shfl_xor(lucebox_shim_bits<int>(value), mask, width));
}

static inline __device__ __half2 __shfl_up(__half2 value, unsigned delta, int width = 32) {
    return lucebox_shim_bits<__half2>(__shfl_up(lucebox_shim_bits<int>(value), delta, width));
}
