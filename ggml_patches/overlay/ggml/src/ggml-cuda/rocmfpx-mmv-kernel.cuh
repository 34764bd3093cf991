#pragma once

// Owns: the matrix-vector kernel of the ROCmFPX types, for 1..8 columns. One warp owns whole rows: no reduction in
// shared memory, and each column of n equals the one-column product bit for bit (rocmfpx-mmv-block.cuh says why).
//
// Two ways to the weights:
//   bulk    each warp has a ring of stages in shared memory which bulk copies fill; weights that no kernel writes are
//           on their way before the wait for the previous kernel (NVIDIA, compute capability 9.0 and newer)
//   direct  lanes load their blocks into registers; no shared memory at all
// kb > 0: K is kb * 1024 and, with one column, the lane's activations stay in registers for all rows of the warp.
//
// Grid: x slices the rows, y channels or experts used (one more for a shared expert), z samples or tokens.

#include "common.cuh"
#include "rocmfpx-mmv-block.cuh"
#include "rocmfpx-mmv-bulk.cuh"
#include "unary.cuh"

#define ROCMFPX_MMV_MAX_WARPS 16

struct rocmfpx_mmv_args {
    const char * x;
    const char * gate; // NULL, or the second matrix of a gated unit, laid out as x
    const block_q8_1 * y;
    float * dst;
    const int32_t * ids;
    const float * x_bias;
    const float * gate_bias;
    const char * shared_up; // NULL, or the shared expert, in the last plane of the grid
    const char * shared_gate;
    float * shared_dst;
    ggml_glu_op glu_op;
    float glu_limit;
    int rows;
    int blocks;        // of a row
    int64_t row_bytes; // of x, as all strides of x
    int64_t channel_bytes, sample_bytes;
    int64_t y_column, y_channel, y_sample; // strides in blocks
    int64_t dst_column, dst_channel, dst_sample, shared_dst_column;
    uint3 channels_y, channel_ratio, sample_ratio; // for fastmodulo and fastdiv
    int64_t ids_stride;
    int tokens;     // z counts tokens, not samples
    int early;      // no kernel of this stream writes the weights: they may be read before its end
    int stages;     // of a warp's ring
    int stage_base; // bytes of shared memory before the rings
};

// What one plane of the grid works on.
struct rocmfpx_mmv_plane {
    const char * x;
    const char * gate;
    const uint32_t * y;
    float * dst;
    int64_t dst_column;
    int64_t bias;
    const int32_t * choice; // where the expert's number is, or NULL
};

// All that does not depend on the previous kernel: with ids, x and gate are those of expert 0.
static __device__ __forceinline__ rocmfpx_mmv_plane rocmfpx_mmv_locate(const rocmfpx_mmv_args & a) {
    const bool shared      = a.shared_up != nullptr && blockIdx.y == gridDim.y - 1;
    const uint32_t channel = shared ? 0 : blockIdx.y;
    const int token        = a.tokens ? blockIdx.z : 0;
    const uint32_t sample  = a.tokens ? 0 : blockIdx.z;
    const uint32_t y       = a.ids ? fastmodulo(channel, a.channels_y) : channel;
    const uint32_t from    = a.ids ? 0 : fastdiv(channel, a.channel_ratio);
    const int64_t offset   = from * a.channel_bytes + fastdiv(sample, a.sample_ratio) * a.sample_bytes;
    rocmfpx_mmv_plane p;
    p.x          = (shared ? a.shared_up : a.x) + offset;
    p.gate       = (shared ? a.shared_gate : a.gate) + offset;
    p.y          = (const uint32_t *) (a.y + sample * a.y_sample + y * a.y_channel + token * a.y_column);
    p.dst_column = shared ? a.shared_dst_column : a.dst_column;
    p.dst        = (shared ? a.shared_dst : a.dst) + sample * a.dst_sample + channel * a.dst_channel;
    p.dst += token * p.dst_column;
    p.bias   = sample * a.dst_sample + channel * a.dst_channel;
    p.choice = a.ids && !shared ? a.ids + channel + token * a.ids_stride : nullptr;
    return p;
}

// Moves to the chosen expert.
static __device__ __forceinline__ void rocmfpx_mmv_choose(const rocmfpx_mmv_args & a, rocmfpx_mmv_plane & p) {
    if (p.choice != nullptr) {
        const int expert = *p.choice;
        p.x += expert * a.channel_bytes;
        p.gate += expert * a.channel_bytes;
        p.bias = expert * a.dst_channel;
    }
}

static __device__ __forceinline__ float rocmfpx_mmv_glu(const rocmfpx_mmv_args & a, float up, float gate) {
    switch (a.glu_op) {
        case GGML_GLU_OP_SWIGLU:
            return up * ggml_cuda_op_silu_single(gate);
        case GGML_GLU_OP_GEGLU:
            return up * ggml_cuda_op_gelu_single(gate);
        case GGML_GLU_OP_SWIGLU_OAI:
            return ggml_cuda_op_swiglu_oai_single(gate, up);
        case GGML_GLU_OP_SWIGLU_CLAMP:
            return ggml_cuda_op_swiglu_clamp_single(gate, up, a.glu_limit);
        default:
            return up * gate;
    }
}

// Sizes of one kernel. A stream is a row of x or of gate; a stage holds `chunk` blocks a lane of every stream.
template <ggml_type type, int ncols, int nrows, int kb, bool gated> struct rocmfpx_mmv_sizes {
    static constexpr int streams     = nrows * (gated ? 2 : 1);
    static constexpr int step_bytes  = 32 * rocmfpx_bytes(type); // of 32 blocks, one a lane
    static constexpr int target      = ncols > 1 ? 2816 : 5376;  // bytes; columns take shared memory too
    static constexpr int fitting     = target / (streams * step_bytes);
    static constexpr int chunk       = kb > 0 ? kb : fitting >= 4 ? 4 : fitting >= 2 ? 2 : 1;
    static constexpr int chunk_bytes = chunk * step_bytes;
    static constexpr int stage_bytes = streams * chunk_bytes;
    static constexpr bool resident   = kb > 0 && ncols == 1; // activations in registers
};

// Adds the 32 blocks `w` points at (one a lane, of each stream) to the sums. y(c): activations of column c.
template <ggml_type type, int ncols, int streams, typename Load, typename Activations>
static __device__ __forceinline__ void rocmfpx_mmv_step(const Load & load, const Activations & y,
                                                        float (&acc)[ncols][streams]) {
    constexpr int n      = rocmfpx_code_words(type);
    constexpr int scales = rocmfpx_scales(type);
    uint32_t v[streams][8];
    float s[streams][2], sum[2];
    if constexpr (ncols == 1) {
        const rocmfpx_activations<type> a = y(0);
        uint32_t w[streams][n + 1];
#pragma unroll
        for (int r = 0; r < streams; ++r) {
            load(r, w[r]);
        }
#pragma unroll
        for (int r = 0; r < streams; ++r) {
            rocmfpx_mmv_scales<type>(w[r][n], s[r]);
            rocmfpx_sum_codes<rocmfpx_native, type>(w[r], a.q, a.start, sum);
            acc[0][r] = rocmfpx_mmv_add<type>(acc[0][r], s[r], sum, a.d);
        }
    } else {
#pragma unroll
        for (int r = 0; r < streams; ++r) {
            uint32_t w[n + 1];
            load(r, w);
            rocmfpx_mmv_scales<type>(w[n], s[r]);
            rocmfpx_levels<rocmfpx_native, type>(w, v[r]);
        }
#pragma unroll
        for (int c = 0; c < ncols; ++c) {
            const rocmfpx_activations<type> a = y(c);
#pragma unroll
            for (int r = 0; r < streams; ++r) {
                rocmfpx_sum_levels<type>(v[r], a.q, a.start, sum);
                acc[c][r] = rocmfpx_mmv_add<type>(acc[c][r], s[r], sum, a.d);
            }
        }
    }
    GGML_UNUSED_VARS(v, s, sum, scales);
}

// Reduces the sums of nrows rows from row0 on and writes those that exist.
template <int ncols, int nrows, bool gated>
static __device__ __forceinline__ void rocmfpx_mmv_finish(const rocmfpx_mmv_args & a, const rocmfpx_mmv_plane & p,
                                                          float (&acc)[ncols][nrows * (gated ? 2 : 1)], int row0,
                                                          int lane) {
    constexpr int n    = ncols * nrows;
    constexpr int left = rocmfpx_mmv_sums_left(n);
    constexpr int same = 32 / (n / left); // lanes with the same sums
    float up[n];
    [[maybe_unused]] float gate[n];
    int first = 0, ignored = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
        up[i] = acc[i / nrows][i % nrows];
        if constexpr (gated) {
            gate[i] = acc[i / nrows][nrows + i % nrows];
        }
    }
    rocmfpx_mmv_reduce<n>(up, lane, first);
    if constexpr (gated) {
        rocmfpx_mmv_reduce<n>(gate, lane, ignored);
    }
    if (lane % same != 0) {
        return;
    }
#pragma unroll
    for (int i = 0; i < left; ++i) {
        const int column = (first + i) / nrows;
        const int row    = row0 + (first + i) % nrows;
        if (row < a.rows) {
            float result = up[i];
            if (ncols == 1 && a.x_bias != nullptr) {
                result += a.x_bias[p.bias + row];
            }
            if constexpr (gated) {
                const float g = a.gate_bias != nullptr ? gate[i] + a.gate_bias[p.bias + row] : gate[i];
                result        = rocmfpx_mmv_glu(a, result, g);
            }
            p.dst[column * p.dst_column + row] = result;
        }
    }
    GGML_UNUSED(ignored);
}
