#pragma once

// Owns: the direct way of rocmfpx-mmv-kernel.cuh, for every device, row size and address.

#include "rocmfpx-mmv-kernel.cuh"

template <ggml_type type, int ncols, int nrows, int kb, bool gated>
static __device__ __forceinline__ void rocmfpx_mmv_direct_tile(const rocmfpx_mmv_args & a, const rocmfpx_mmv_plane & p,
                                                               const rocmfpx_activations<type> * resident, int row0,
                                                               int lane) {
    using sizes               = rocmfpx_mmv_sizes<type, ncols, nrows, kb, gated>;
    constexpr int streams     = sizes::streams;
    constexpr int unroll      = kb > 0 ? kb : 1;
    float acc[ncols][streams] = {};
    const char * row[streams];
#pragma unroll
    for (int r = 0; r < streams; ++r) { // rows past the end repeat the last one
        const int64_t offset = min(row0 + r % nrows, a.rows - 1) * a.row_bytes + lane * rocmfpx_bytes(type);
        row[r]               = (r < nrows ? p.x : p.gate) + offset;
    }
    const int steps = kb > 0 ? kb : (a.blocks + 31) / 32;
#pragma unroll unroll
    for (int j = 0; j < steps; ++j) {
        const int block = 32 * j + lane;
        if (kb == 0 && block >= a.blocks) {
            break;
        }
        const auto load = [&](int r, uint32_t * w) { rocmfpx_mmv_load<type>(row[r] + j * sizes::step_bytes, w); };
        const auto y    = [&](int c) {
            if constexpr (sizes::resident) {
                GGML_UNUSED(c);
                return resident[j];
            } else {
                rocmfpx_activations<type> out;
                rocmfpx_mmv_activations<type>(p.y + 9 * (c * a.y_column + block), out);
                return out;
            }
        };
        rocmfpx_mmv_step<type, ncols, streams>(load, y, acc);
    }
    rocmfpx_mmv_finish<ncols, nrows, gated>(a, p, acc, row0, lane);
    GGML_UNUSED(resident);
}

template <ggml_type type, int ncols, int nrows, int kb, bool gated>
static __device__ __forceinline__ void rocmfpx_mmv_direct(const rocmfpx_mmv_args & a) {
    using sizes         = rocmfpx_mmv_sizes<type, ncols, nrows, kb, gated>;
    const int lane      = threadIdx.x;
    rocmfpx_mmv_plane p = rocmfpx_mmv_locate(a);
    ggml_cuda_pdl_sync();
    ggml_cuda_pdl_lc();
    rocmfpx_mmv_choose(a, p);
    rocmfpx_activations<type> resident[sizes::resident ? kb : 1];
    if constexpr (sizes::resident) {
#pragma unroll
        for (int j = 0; j < kb; ++j) {
            rocmfpx_mmv_activations<type>(p.y + 9 * (32 * j + lane), resident[j]);
        }
    }
    const int tiles = (a.rows + nrows - 1) / nrows;
    for (int tile = blockIdx.x * blockDim.y + threadIdx.y; tile < tiles; tile += gridDim.x * blockDim.y) {
        rocmfpx_mmv_direct_tile<type, ncols, nrows, kb, gated>(a, p, resident, tile * nrows, lane);
    }
}
