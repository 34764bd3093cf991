#pragma once

// Owns: products of MMQ tiles on the matrix units that upstream's loops do not suit: AMD's and those of Ampere and
// later. Tiles are upstream's: int8 levels and one float scale per 32 (as Q8_0) or per 16 (as IQ2_S).

#include "mmq.cuh"

#if defined(AMD_MFMA_AVAILABLE) || defined(TURING_MMA_AVAILABLE) || defined(AMD_WMMA_AVAILABLE)
#define ROCMFPX_MMQ_MATRIX_TILE true
#else
#define ROCMFPX_MMQ_MATRIX_TILE false
#endif
#if defined(AMD_MFMA_AVAILABLE) || defined(AMD_WMMA_AVAILABLE)
#define ROCMFPX_MMQ_AMD_TILE true
#else
#define ROCMFPX_MMQ_AMD_TILE false
#endif
#if defined(AMPERE_MMA_AVAILABLE)
#define ROCMFPX_MMQ_AMPERE_TILE true
#else
#define ROCMFPX_MMQ_AMPERE_TILE false
#endif

// Levels of a two-scale type lie in the tile times 2^shift, as much as a signed byte holds, and scales over it: see
// rocmfpx_vec_dot_ampere.
static constexpr __device__ int rocmfpx_mmq_shift(ggml_type type) {
    return !ROCMFPX_MMQ_AMPERE_TILE         ? 0
           : type == GGML_TYPE_Q2_0_ROCMFP2 ? 5
           : type == GGML_TYPE_Q3_0_ROCMFPX ? 4
           : type == GGML_TYPE_Q4_0_ROCMFP4 ? 3
           : type == GGML_TYPE_Q6_0_ROCMFPX ? 2
                                            : 0;
}

// Upstream's products on AMD's matrix units, with one difference: the loop over K stays a loop. Unrolled, as the
// compiler likes it for 16 and 32 columns, all of K is held in registers and some of it spills.
template <ggml_type like, int J, bool fallback>
static __device__ __forceinline__ void rocmfpx_vec_dot_amd(const int * __restrict__ x, const int * __restrict__ y,
                                                           float * __restrict__ sum, const int k00) {
#if defined(AMD_MFMA_AVAILABLE) || defined(AMD_WMMA_AVAILABLE)
    constexpr int words  = like == GGML_TYPE_Q8_0 ? 8 : 4; // under one scale
    constexpr int stride = ggml_cuda_mmq_get_sram_stride(like, J, fallback, GGML_PREC_Q8);
    typedef tile<16, words, int, get_input_data_layout()> tile_in;
    typedef tile<16, 16, int, DATA_LAYOUT_J_MAJOR> tile_out;

    const int * rows    = x + threadIdx.y * tile_out::I * stride;
    const float * scale = (const float *) (rows + 2 * MMQ_TILE_NE_K) + k00 / words;
    const float * d     = (const float *) (y + tile_out::get_j(0) * MMQ_TILE_Y_K);
#pragma unroll 1
    for (int k = 0; k < MMQ_TILE_NE_K; k += words) {
        tile_in a;
        load_ldmatrix(a, rows + k00 + k, stride);
#pragma unroll
        for (int j = 0; j < J; j += tile_out::J) {
            tile_in b;
            tile_out c;
            load_ldmatrix(b, y + j * MMQ_TILE_Y_K + 4 + k, MMQ_TILE_Y_K);
            mma(c, a, b);
#pragma unroll
            for (int l = 0; l < tile_out::ne; ++l) {
                sum[j / tile_out::J * tile_out::ne + l] +=
                    c.x[l] * scale[tile_out::get_i(l) * stride + k / words] * d[j * MMQ_TILE_Y_K + k / QI8_1];
            }
        }
    }
#else
    GGML_UNUSED_VARS(x, y, sum, k00);
    NO_DEVICE_CODE;
#endif
}

// What costs here is not the matrix unit but turning its integers into floats, scaling and adding them. So sums start
// at BIAS, whose bits are those of the float 1.5 * 2^23: the result c is, as a float, 1.5 * 2^23 + c, and one fused
// multiply-add with the scale makes c * scale of it: f * scale - 1.5 * 2^23 * scale. Scales have four significant
// bits, so the last product is exact and so is the sum. |c| stays below 2^22.
// With two scales the second biased product is added to the first: between the two the bias of the second stands, and
// c0 * scale0 is rounded to about scale1, a unit of c1. Levels are shifted so far up that a unit is 1/4 to 1/32 of
// the step of a level times an activation: nothing beside the rounding of the activations themselves.
#define ROCMFPX_BIAS       0x4B400000
#define ROCMFPX_BIAS_FLOAT 12582912.0f

#if defined(AMPERE_MMA_AVAILABLE)
template <int words>
static __device__ __forceinline__ void rocmfpx_mma_biased(int (&c)[4], const int * a, const int * b) {
    if constexpr (words == 8) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(ROCMFPX_BIAS));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(ROCMFPX_BIAS));
    }
}
#endif

template <ggml_type like, int J, bool fallback>
static __device__ __forceinline__ void rocmfpx_vec_dot_ampere(const int * __restrict__ x, const int * __restrict__ y,
                                                              float * __restrict__ sum, const int k00) {
#if defined(AMPERE_MMA_AVAILABLE)
    typedef tile<16, 8, int> tile_A;
    typedef tile<8, 8, int> tile_B;
    typedef tile<16, 8, int> tile_C;
    constexpr int words  = like == GGML_TYPE_Q8_0 ? 8 : 4; // under one scale
    constexpr int scales = 8 / words;
    constexpr int stride = ggml_cuda_mmq_get_sram_stride(like, J, fallback, GGML_PREC_Q8);
    constexpr int ntx    = ggml_cuda_mmq_get_rows_per_warp(like, J, fallback, GGML_PREC_Q8) / tile_C::I;

    const int * rows    = x + threadIdx.y / ntx * (ntx * tile_A::I) * stride;
    const float * scale = (const float *) (rows + 2 * MMQ_TILE_NE_K) + k00 / words;
    y += threadIdx.y % ntx * (tile_C::J * MMQ_TILE_Y_K);

#pragma unroll 1
    for (int s = 0; s < MMQ_TILE_NE_K / 8; ++s, scale += scales) {
        tile_A a[ntx];
        float da[ntx][2][scales];
        float bias[ntx][2];
#pragma unroll
        for (int n = 0; n < ntx; ++n) {
            load_ldmatrix(a[n], rows + n * tile_A::I * stride + k00 + 8 * s, stride);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float * row = scale + (n * tile_C::I + tile_C::get_i(2 * h)) * stride;
                bias[n][h]        = 0.0f;
#pragma unroll
                for (int i = 0; i < scales; ++i) {
                    da[n][h][i] = row[i];
                    bias[n][h] += row[i];
                }
                bias[n][h] *= -ROCMFPX_BIAS_FLOAT;
            }
        }
#pragma unroll
        for (int j0 = 0; j0 < J; j0 += ntx * tile_C::J) {
            tile_B b;
            load_generic(b, y + 4 + j0 * MMQ_TILE_Y_K + 8 * s, MMQ_TILE_Y_K);
            const float db[2] = {__int_as_float(y[(j0 + tile_C::get_j(0)) * MMQ_TILE_Y_K + s]),
                                 __int_as_float(y[(j0 + tile_C::get_j(1)) * MMQ_TILE_Y_K + s])};
#pragma unroll
            for (int n = 0; n < ntx; ++n) {
                int c[scales][4];
#pragma unroll
                for (int i = 0; i < scales; ++i) {
                    rocmfpx_mma_biased<words>(c[i], a[n].x + 2 * i, b.x + i);
                }
#pragma unroll
                for (int l = 0; l < 4; ++l) {
                    float t = bias[n][l / 2];
#pragma unroll
                    for (int i = 0; i < scales; ++i) {
                        t = __fmaf_rn(__int_as_float(c[i][l]), da[n][l / 2][i], t);
                    }
                    float & total = sum[(j0 / tile_C::J + n) * tile_C::ne + l];
                    total         = __fmaf_rn(t, db[l % 2], total);
                }
            }
        }
    }
#else
    GGML_UNUSED_VARS(x, y, sum, k00);
    NO_DEVICE_CODE;
#endif
}
