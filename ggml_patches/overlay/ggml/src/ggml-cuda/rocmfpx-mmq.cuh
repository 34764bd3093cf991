#pragma once

// Owns: how MMQ reads ROCmFPX blocks into its tile. Tile, launch shape and products are upstream's, of the type that
// ggml_cuda_rocmfpx_mmq_like names. One rocmfpx-mmq-<stem>.cu a type includes this file and instantiates it.

#include "common.cuh"

// An instance that a device's table of launch shapes does not name is never launched. Upstream's prints before it
// traps, and the printing alone costs scratch memory. Before mmq.cuh, which uses the name.
#if defined(GGML_USE_HIP)
#undef NO_DEVICE_CODE
#define NO_DEVICE_CODE __builtin_trap()
#endif

#include "mmq.cuh"
#include "rocmfpx-decode.cuh"
#include "rocmfpx-mmq-dot.cuh"

#define ROCMFPX_MMQ_TRAITS(id, suffix, stem, name, bytes)                                                              \
    template <> struct ggml_cuda_type_traits<GGML_TYPE_##suffix> {                                                     \
        static constexpr int qk = QK_ROCMFPX;                                                                          \
        static constexpr int qr = 1;                                                                                   \
        static constexpr int qi = QI8_0;                                                                               \
    };
ROCMFPX_TYPES(ROCMFPX_MMQ_TRAITS)

// One row of a tile: 64 words of levels, then a float scale per 32 or per 16 weights.
template <ggml_type type, bool matrix_tile> struct rocmfpx_tile_row {
    static constexpr int scales = rocmfpx_layout<type>::scales;

    int * levels;
    float * scale;

    static __device__ __forceinline__ rocmfpx_tile_row at(int * tile, int i, int sram_stride,
                                                          const tile_x_sizes & dp4a) {
        if constexpr (matrix_tile) {
            return {tile + i * sram_stride, (float *) (tile + i * sram_stride + 2 * MMQ_TILE_NE_K)};
        } else {
            constexpr int per_row = 2 * MMQ_TILE_NE_K * scales / QI8_0;
            return {tile + i * (2 * MMQ_TILE_NE_K + 1),
                    (float *) (tile + dp4a.qs) + i * per_row + i / (QI8_0 / (2 * scales))};
        }
    }

    __device__ __forceinline__ void store_pair(int word, uint32_t a, uint32_t b) const {
        if constexpr (matrix_tile) {
            *(int2 *) (levels + word) = make_int2((int) a, (int) b);
        } else {
            levels[word]     = (int) a;
            levels[word + 1] = (int) b;
        }
    }
};

// 256 weights of each of I rows; a thread takes half a block at a time. Loads past the end of a row meet activations
// that are zero.
template <ggml_type type, int J, bool fallback>
static __device__ __forceinline__ void rocmfpx_load_tiles(const char * __restrict__ x, int * __restrict__ x_tile,
                                                          const int kbx0, const int i_max, const int stride) {
    using row_type              = rocmfpx_tile_row<type, ROCMFPX_MMQ_MATRIX_TILE>;
    constexpr int warp_size     = ggml_cuda_get_physical_warp_size();
    constexpr int nwarps        = ggml_cuda_mmq_get_nthreads(type, J, fallback, GGML_PREC_Q8) / warp_size;
    constexpr int I             = ggml_cuda_mmq_get_I(type, J, fallback, GGML_PREC_Q8);
    constexpr int sram_stride   = ggml_cuda_mmq_get_sram_stride(type, J, fallback, GGML_PREC_Q8);
    constexpr int per_row       = 2 * MMQ_ITER_K / QK_ROCMFPX; // threads
    constexpr int per_warp      = warp_size / per_row;         // rows
    constexpr int scales        = rocmfpx_layout<type>::scales;
    constexpr int shift         = rocmfpx_mmq_shift(type);
    constexpr tile_x_sizes dp4a = mmq_get_dp4a_tile_x_sizes(ggml_cuda_rocmfpx_mmq_like(type), I);

    const int kbx = threadIdx.x % per_row / 2;
    const int h   = threadIdx.x % 2;

#pragma unroll
    for (int i0 = 0; i0 < I; i0 += nwarps * per_warp) {
        int i = i0 + threadIdx.y * per_warp + threadIdx.x / per_row;
        if (fallback) {
            i = min(i, i_max);
        }
        const uint8_t * block =
            (const uint8_t *) x + (int64_t) (kbx0 + i * stride + kbx) * rocmfpx_layout<type>::block_bytes;
        const row_type row = row_type::at(x_tile, i, sram_stride, dp4a);

        uint32_t levels[4];
        rocmfpx_half_levels<type, shift>(block, h, levels);
        row.store_pair(8 * kbx + rocmfpx_first_weight<type>(h, 0) / 4, levels[0], levels[1]);
        row.store_pair(8 * kbx + rocmfpx_first_weight<type>(h, 2) / 4, levels[2], levels[3]);

        if (scales == 2 || h == 0) {
            row.scale[kbx * scales + h] = rocmfpx_scale(block[rocmfpx_layout<type>::code_bytes + h]) / (1 << shift);
        }
    }
}

template <ggml_type type, int J, bool fallback>
static constexpr __device__ ggml_cuda_mmq_util_funcs ggml_cuda_rocmfpx_mmq_util_funcs() {
    constexpr ggml_type like        = ggml_cuda_rocmfpx_mmq_like(type);
    constexpr ggml_prec prec        = GGML_PREC_Q8;
    ggml_cuda_mmq_load_tiles_t load = rocmfpx_load_tiles<type, J, fallback>;
    if (!ROCMFPX_MMQ_MATRIX_TILE) {
        if constexpr (like == GGML_TYPE_Q8_0) {
            return ggml_cuda_mmq_util_funcs(-1, load, ggml_cuda_mmq_vec_dot_q8_0_q8_1_dp4a<like, J, fallback>,
                                            ggml_cuda_mmq_write_back_dp4a<like, J, fallback, prec>);
        } else {
            return ggml_cuda_mmq_util_funcs(-1, load, ggml_cuda_mmq_vec_dot_q8_0_16_q8_1_dp4a<like, J, fallback>,
                                            ggml_cuda_mmq_write_back_dp4a<like, J, fallback, prec>);
        }
    }
    if constexpr (ROCMFPX_MMQ_AMD_TILE) {
        return ggml_cuda_mmq_util_funcs(-1, load, rocmfpx_vec_dot_amd<like, J, fallback>,
                                        ggml_cuda_mmq_write_back_mma<like, J, fallback, prec>);
    } else if constexpr (ROCMFPX_MMQ_AMPERE_TILE) {
        return ggml_cuda_mmq_util_funcs(-1, load, rocmfpx_vec_dot_ampere<like, J, fallback>,
                                        ggml_cuda_mmq_write_back_mma<like, J, fallback, prec>);
    } else if constexpr (like == GGML_TYPE_Q8_0) {
        return ggml_cuda_mmq_util_funcs(-1, load,
                                        ggml_cuda_mmq_vec_dot_q8_0_q8_1_mma<like, J, fallback, MMQ_Q8_1_DS_LAYOUT_D4>,
                                        ggml_cuda_mmq_write_back_mma<like, J, fallback, prec>);
    } else {
        return ggml_cuda_mmq_util_funcs(-1, load, ggml_cuda_mmq_vec_dot_q8_0_16_q8_1_mma<like, J, fallback, prec>,
                                        ggml_cuda_mmq_write_back_mma<like, J, fallback, prec>);
    }
}
