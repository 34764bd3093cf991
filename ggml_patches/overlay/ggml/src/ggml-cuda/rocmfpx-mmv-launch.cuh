#pragma once

// Owns: which kernel a product takes and how it is launched; one instance a type, in rocmfpx-mmv-<stem>.cu.

#include "rocmfpx-mmv-direct.cuh"
#include "rocmfpx-mmv-kernel.cuh"
#include "rocmfpx-mmv-ring.cuh"

// A launch: warps a block, blocks a multiprocessor that the grid counts on, stages a ring.
struct rocmfpx_mmv_shape {
    int warps;
    int blocks_per_sm;
    int stages;
};

template <ggml_type type, int ncols, int nrows, int kb, bool gated, bool bulk, int blocks_per_sm>
__launch_bounds__(ROCMFPX_MMV_MAX_WARPS * 32, blocks_per_sm) static __global__
    void rocmfpx_mmv(const rocmfpx_mmv_args a) {
    if constexpr (!bulk) {
        rocmfpx_mmv_direct<type, ncols, nrows, kb, gated>(a);
    } else {
#ifdef ROCMFPX_BULK_AVAILABLE
        rocmfpx_mmv_bulk<type, ncols, nrows, kb, gated>(a);
#else
        GGML_UNUSED(a);
        NO_DEVICE_CODE;
#endif
    }
}

// Shared memory of a block with rings; sets where they start.
template <ggml_type type, int ncols, int nrows, int kb, bool gated>
static size_t rocmfpx_mmv_shared_bytes(rocmfpx_mmv_args & a, const rocmfpx_mmv_shape & shape) {
    using sizes       = rocmfpx_mmv_sizes<type, ncols, nrows, kb, gated>;
    const size_t sums = rocmfpx_level_offset(type) != 0 && !sizes::resident ? sizeof(int2) : 0;
    const size_t y    = (size_t) ncols * a.blocks * (sizeof(block_q8_1) + sums);
    a.stages          = shape.stages;
    a.stage_base      = (int) GGML_PAD(8 * ROCMFPX_MMV_MAX_WARPS * shape.stages + y, 128);
    return a.stage_base + (size_t) shape.warps * shape.stages * sizes::stage_bytes;
}

// False if the device has not enough shared memory.
template <ggml_type type, int ncols, int nrows, int kb, bool gated, bool bulk, int blocks_per_sm = 2>
static bool rocmfpx_mmv_launch(rocmfpx_mmv_args a, int channels, int samples, const rocmfpx_mmv_shape & shape,
                               cudaStream_t stream) {
    const auto & device = ggml_cuda_info().devices[ggml_cuda_get_device()];
    const auto kernel   = rocmfpx_mmv<type, ncols, nrows, kb, gated, bulk, blocks_per_sm>;
    size_t shared       = 0;
    if constexpr (bulk) {
        shared = rocmfpx_mmv_shared_bytes<type, ncols, nrows, kb, gated>(a, shape);
        if (shared > device.smpbo) {
            return false;
        }
        CUDA_SET_SHARED_MEMORY_LIMIT(kernel, (int) device.smpbo);
    }
    const int tiles  = (a.rows + nrows - 1) / nrows;
    const int planes = channels * samples;
    const int useful = (tiles + shape.warps - 1) / shape.warps;
    const int share  = std::max(1, device.nsm * shape.blocks_per_sm / planes);
    const dim3 grid(std::min(useful, share), channels, samples);
    const dim3 block(32, shape.warps);
    ggml_cuda_kernel_launch(kernel, ggml_cuda_kernel_launch_params(grid, block, shared, stream), a);
    return true;
}

// A product: what is launched and over how many planes.
struct rocmfpx_mmv_product {
    rocmfpx_mmv_args args;
    int columns;  // that share the weights, 1..8
    int channels; // planes of the grid in y
    int samples;  // and in z: samples or tokens
    bool bulk;    // the device has bulk copies and every row starts at a multiple of 16
};

// Rows a warp works on at once: about 5 kB of weights a stage, one where rows are fewer than warps.
static constexpr __host__ __device__ int rocmfpx_mmv_rows(ggml_type type, int kb, bool gated) {
    const int row  = kb * 32 * rocmfpx_bytes(type) * (gated ? 2 : 1);
    const int most = 5376 / row;
    return most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

// K of kb * 1024. Without bulk copies at compile time, the direct way: one warp a block, no shared memory.
template <ggml_type type, int kb, bool gated>
static bool rocmfpx_mmv_fixed(const rocmfpx_mmv_product & p, cudaStream_t stream) {
    constexpr int nrows = rocmfpx_mmv_rows(type, kb, gated);
    if constexpr (!rocmfpx_bulk_compiled) {
        constexpr int some = nrows > 2 ? 2 : nrows;
        return rocmfpx_mmv_launch<type, 1, some, kb, gated, false>(p.args, p.channels, p.samples, {1, 32, 0}, stream);
    } else if (p.bulk && p.args.row_bytes == kb * 32 * rocmfpx_bytes(type)) {
        const rocmfpx_mmv_shape shape{8, 2, 2};
        const int nsm       = ggml_cuda_info().devices[ggml_cuda_get_device()].nsm;
        const int64_t rows  = (int64_t) p.args.rows * p.channels * p.samples;
        const int64_t warps = (int64_t) nsm * shape.blocks_per_sm * shape.warps;
        if (nrows > 1 && rows < nrows * warps) {
            return rocmfpx_mmv_launch<type, 1, 1, kb, gated, true>(p.args, p.channels, p.samples, shape, stream);
        }
        return rocmfpx_mmv_launch<type, 1, nrows, kb, gated, true>(p.args, p.channels, p.samples, shape, stream);
    }
    return false;
}

template <ggml_type type, int ncols, bool gated>
static void rocmfpx_mmv_any(const rocmfpx_mmv_product & p, cudaStream_t stream) {
    constexpr int nrows = gated || ncols > 6 ? 2 : 4; // more do not fit in 128 registers
    if constexpr (rocmfpx_bulk_compiled) {
        const rocmfpx_mmv_shape shape{8, 2, 2};
        if (p.bulk &&
            rocmfpx_mmv_launch<type, ncols, nrows, 0, gated, true>(p.args, p.channels, p.samples, shape, stream)) {
            return;
        }
    }
    rocmfpx_mmv_launch<type, ncols, nrows, 0, gated, false>(p.args, p.channels, p.samples, {1, 32, 0}, stream);
}

template <ggml_type type, bool gated>
static void rocmfpx_mmv_one_column(const rocmfpx_mmv_product & p, cudaStream_t stream) {
    const int blocks = p.args.blocks;
    if (blocks == 128 && rocmfpx_mmv_fixed<type, 4, gated>(p, stream)) {
        return;
    }
    if constexpr (!gated) {
        if ((blocks == 64 && rocmfpx_mmv_fixed<type, 2, gated>(p, stream)) ||
            (blocks == 32 && rocmfpx_mmv_fixed<type, 1, gated>(p, stream))) {
            return;
        }
    }
    rocmfpx_mmv_any<type, 1, gated>(p, stream);
}

template <ggml_type type> static void rocmfpx_mmv_switch(const rocmfpx_mmv_product & p, cudaStream_t stream) {
    if (p.args.gate != nullptr) {
        GGML_ASSERT(p.columns == 1);
        rocmfpx_mmv_one_column<type, true>(p, stream);
        return;
    }
    switch (p.columns) {
        case 1:
            rocmfpx_mmv_one_column<type, false>(p, stream);
            break;
        case 2:
            rocmfpx_mmv_any<type, 2, false>(p, stream);
            break;
        case 3:
            rocmfpx_mmv_any<type, 3, false>(p, stream);
            break;
        case 4:
            rocmfpx_mmv_any<type, 4, false>(p, stream);
            break;
        case 5:
            rocmfpx_mmv_any<type, 5, false>(p, stream);
            break;
        case 6:
            rocmfpx_mmv_any<type, 6, false>(p, stream);
            break;
        case 7:
            rocmfpx_mmv_any<type, 7, false>(p, stream);
            break;
        case 8:
            rocmfpx_mmv_any<type, 8, false>(p, stream);
            break;
        default:
            GGML_ABORT("ROCmFPX: a matrix-vector product of %d columns", p.columns);
    }
}

// The instances.
#define ROCMFPX_MMV_INSTANCE(stem, type)                                                                               \
    void rocmfpx_mmv_##stem(const rocmfpx_mmv_product & p, cudaStream_t stream) {                                      \
        rocmfpx_mmv_switch<type>(p, stream);                                                                           \
    }
#define ROCMFPX_MMV_DECLARE(id, suffix, stem, name, bytes)                                                             \
    void rocmfpx_mmv_##stem(const rocmfpx_mmv_product & p, cudaStream_t stream);
ROCMFPX_TYPES(ROCMFPX_MMV_DECLARE)
