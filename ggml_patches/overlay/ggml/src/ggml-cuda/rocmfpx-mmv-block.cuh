#pragma once

// Owns: what a lane does with one block and what a warp does with its sums: loading words, scales, the chain of float
// operations, the reduction. Every kernel of rocmfpx-mmv-kernel.cuh is made of these, so all give the same bits:
//   lane l of 32 owns blocks l, l+32, l+64, ... of a row, in that order;
//   a block adds d * (s0 * sum0 + s1 * sum1), or d * (s0 * sum0), by multiply and fused multiply-add as written here;
//   lanes are added in a butterfly of distances 16, 8, 4, 2, 1.

#include "common.cuh"
#include "rocmfpx-permute.cuh"

// Activations of one block, arranged.
template <ggml_type type> struct rocmfpx_activations {
    uint32_t q[8];
    float d; // times 2^7, which rocmfpx_mmv_scales leaves out, over the factor of the levels
    int start[2];
};

// Scales over 2^7 of a block from the word with its scale bytes lowest. A scale byte is the exponent and mantissa of
// a half. Bytes above ROCMFPX_SCALE_MAX give 0 as on the CPU.
template <ggml_type type> static __device__ __forceinline__ void rocmfpx_mmv_scales(uint32_t word, float * s) {
    constexpr bool two = rocmfpx_scales(type) == 2;
    uint32_t bits      = two ? rocmfpx_pick<rocmfpx_native, 0x1404>(word, 0) >> 1 : (word & 0xff) << 7;
    half2 pair;
    memcpy(&pair, &bits, sizeof(pair));
    bits &= __hgt2_mask(__float2half2_rn(1.875f), pair); // byte 0x7f is 1.875, those above are more or no numbers
    memcpy(&pair, &bits, sizeof(pair));
    if constexpr (two) {
        const float2 both = __half22float2(pair);
        s[0]              = both.x;
        s[1]              = both.y;
    } else {
        s[0] = __low2float(pair);
    }
}

// Code words and, behind them, the word of the scale bytes. `from` is aligned and lies `shift` bits before the block.
// No word without a byte of the block is read.
template <ggml_type type>
static __device__ __forceinline__ void rocmfpx_mmv_load_aligned(const uint32_t * from, uint32_t shift, uint32_t * w) {
    constexpr int n = rocmfpx_code_words(type);
    uint32_t raw[n + 1];
#pragma unroll
    for (int i = 0; i <= n; ++i) {
        raw[i] = from[i];
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
        w[i] = rocmfpx_funnel(raw[i], raw[i + 1], shift);
    }
    w[n] = raw[n] >> shift;
}

// As above, from a block at any address. AMD has unaligned loads.
template <ggml_type type> static __device__ __forceinline__ void rocmfpx_mmv_load(const char * block, uint32_t * w) {
#if defined(GGML_USE_HIP)
    constexpr int n = rocmfpx_code_words(type);
    memcpy(w, block, 4 * n);
    if constexpr (rocmfpx_scales(type) == 2) {
        uint16_t scales;
        memcpy(&scales, block + 4 * n, 2);
        w[n] = scales;
    } else {
        w[n] = (uint8_t) block[4 * n];
    }
#else
    const uint32_t offset = (uint32_t) ((uintptr_t) block & 3);
    rocmfpx_mmv_load_aligned<type>((const uint32_t *) (block - offset), 8 * offset, w);
#endif
}

// From a block_q8_1 as quantize_row_q8_1_cuda leaves it.
template <ggml_type type>
static __device__ __forceinline__ void rocmfpx_mmv_activations(const uint32_t * y, rocmfpx_activations<type> & a) {
    constexpr float factor = 128.0f / rocmfpx_level_factor(type);
    a.d                    = __half2float(__ushort_as_half((unsigned short) y[0])) * factor;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        a.q[i] = y[1 + i];
    }
    rocmfpx_sum_starts<type>(a.q, a.start);
    rocmfpx_arrange<rocmfpx_native, type>(a.q);
}

template <ggml_type type>
static __device__ __forceinline__ float rocmfpx_mmv_add(float acc, const float * s, const float * sum, float d) {
    float product = __fmul_rn(s[0], sum[0]);
    if constexpr (rocmfpx_scales(type) == 2) {
        product = __fmaf_rn(s[1], sum[1], product);
    }
    return __fmaf_rn(d, product, acc);
}

// Adds v[0 .. n-1] over the 32 lanes, halving the number of sums a lane holds while it is even. In the end a lane
// holds the sums of v[first], v[first + 1], ..., as many as the odd part of n (n <= 32 * odd part).
template <int n, int distance = 16>
static __device__ __forceinline__ void rocmfpx_mmv_reduce(float * v, int lane, int & first) {
    if constexpr (distance > 0 && n % 2 == 0) {
        const bool upper = lane & distance;
#pragma unroll
        for (int i = 0; i < n / 2; ++i) {
            const float keep = upper ? v[i + n / 2] : v[i];
            const float give = upper ? v[i] : v[i + n / 2];
            v[i]             = keep + __shfl_xor_sync(0xffffffff, give, distance, 32);
        }
        first += upper ? n / 2 : 0;
        rocmfpx_mmv_reduce<n / 2, distance / 2>(v, lane, first);
    } else if constexpr (distance > 0) {
#pragma unroll
        for (int i = 0; i < n; ++i) {
            v[i] = v[i] + __shfl_xor_sync(0xffffffff, v[i], distance, 32);
        }
        rocmfpx_mmv_reduce<n, distance / 2>(v, lane, first);
    }
}

// Sums a lane holds after rocmfpx_mmv_reduce<n>, and lanes that hold the same ones.
static constexpr __host__ __device__ int rocmfpx_mmv_sums_left(int n, int lanes = 32) {
    return n % 2 == 0 && lanes > 1 ? rocmfpx_mmv_sums_left(n / 2, lanes / 2) : n;
}
