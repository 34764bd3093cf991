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
__launch_bounds__(blocks_per_sm == 1 ? 512 : 256, blocks_per_sm) static __global__
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

// Of a kernel for a fixed K: rows a warp works on at once, stages, blocks an SM is to hold (of 8 warps).
struct rocmfpx_mmv_choice {
    int rows;
    int stages;
    int blocks_per_sm;
};

// Rows, over all planes of the grid, from which a product counts as one of many rows.
static constexpr int rocmfpx_mmv_many(ggml_type type, int kb) {
    return kb == 2 ? 8449 : type == GGML_TYPE_Q3_0_ROCMFPX ? 4225 : 32768;
}

// Measured on an H200 at the shapes of DeepSeek-V4-Flash, in a graph that walks over 540 MB of weights.
static constexpr rocmfpx_mmv_choice rocmfpx_mmv_choose(ggml_type type, int kb, bool gated, bool many) {
    const bool fp2 = type == GGML_TYPE_Q2_0_ROCMFP2;
    const bool fp8 = type == GGML_TYPE_Q8_0_ROCMFPX;
    if (gated) {
        return {fp2 ? 2 : 1, fp8 ? 3 : 2, type == GGML_TYPE_Q4_0_ROCMFP4_FAST ? 3 : 2};
    }
    if (kb == 4) {
        return {many ? 2 : 1, 2, 2};
    }
    return {kb == 2 && many ? 2 : 4, fp8 && (kb == 1 || many) ? 3 : 2, 2};
}

template <ggml_type type, int kb, bool gated, bool many>
static bool rocmfpx_mmv_chosen(const rocmfpx_mmv_product & p, cudaStream_t stream) {
    constexpr rocmfpx_mmv_choice choice = rocmfpx_mmv_choose(type, kb, gated, many);
    const rocmfpx_mmv_shape shape{8, choice.blocks_per_sm, choice.stages};
    return rocmfpx_mmv_launch<type, 1, choice.rows, kb, gated, true, choice.blocks_per_sm>(p.args, p.channels,
                                                                                           p.samples, shape, stream);
}

// K of kb * 1024. Without bulk copies at compile time, the direct way: one warp a block, no shared memory.
template <ggml_type type, int kb, bool gated>
static bool rocmfpx_mmv_fixed(const rocmfpx_mmv_product & p, cudaStream_t stream) {
    if constexpr (!rocmfpx_bulk_compiled) {
        constexpr int nrows = gated || kb * rocmfpx_bytes(type) > 100 ? 1 : 2; // what registers hold
        return rocmfpx_mmv_launch<type, 1, nrows, kb, gated, false>(p.args, p.channels, p.samples, {1, 32, 0}, stream);
    } else if (p.bulk && p.args.row_bytes == kb * 32 * rocmfpx_bytes(type)) {
        const int64_t rows = (int64_t) p.args.rows * p.channels * p.samples;
        if (gated || kb == 1 || rows < rocmfpx_mmv_many(type, kb)) {
            return rocmfpx_mmv_chosen<type, kb, gated, false>(p, stream);
        } else if constexpr (!gated && kb != 1) {
            return rocmfpx_mmv_chosen<type, kb, gated, true>(p, stream);
        }
    }
    return false;
}

template <ggml_type type, int ncols, bool gated>
static void rocmfpx_mmv_any(const rocmfpx_mmv_product & p, cudaStream_t stream) {
    constexpr bool few  = gated || ncols > 6 || (ncols == 1 && type == GGML_TYPE_Q8_0_ROCMFPX);
    constexpr int nrows = few ? 2 : 4; // what registers and stages hold
    if constexpr (rocmfpx_bulk_compiled) {
        // Many columns: one block an SM, whose warps share the activations. A short row fits in two stages.
        constexpr int blocks_per_sm = ncols > 1 ? 1 : 2;
        constexpr int chunk         = rocmfpx_mmv_sizes<type, ncols, nrows, 0, gated>::chunk;
        const int stages            = ncols > 1 || p.args.blocks <= 64 * chunk ? 2 : 3;
        const rocmfpx_mmv_shape shape{16 / blocks_per_sm, blocks_per_sm, stages};
        if (p.bulk && rocmfpx_mmv_launch<type, ncols, nrows, 0, gated, true, blocks_per_sm>(p.args, p.channels,
                                                                                            p.samples, shape, stream)) {
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
