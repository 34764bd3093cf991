#pragma once

// Owns: places in tensors of up to four dimensions, for the kernels that copy, quantise and read ROCmFPX rows.

#include "common.cuh"
#include "ggml-rocmfpx.h"

// Rows are whole in memory. ne count weights, nb bytes.
struct rocmfpx_rows {
    int64_t ne0, ne1, ne2;
    int64_t nb1, nb2, nb3;
};

static inline rocmfpx_rows rocmfpx_rows_of(const ggml_tensor * t) {
    return {t->ne[0], t->ne[1], t->ne[2], (int64_t) t->nb[1], (int64_t) t->nb[2], (int64_t) t->nb[3]};
}

struct rocmfpx_place {
    int64_t block, i1, i2, i3; // block: of 32 weights, in its row
};

static __device__ __forceinline__ rocmfpx_place rocmfpx_place_of(const rocmfpx_rows & r, int64_t block) {
    const int64_t per_row = r.ne0 / QK_ROCMFPX;
    rocmfpx_place p;
    p.block             = block % per_row;
    const int64_t row   = block / per_row;
    p.i1                = row % r.ne1;
    const int64_t plane = row / r.ne1;
    p.i2                = plane % r.ne2;
    p.i3                = plane / r.ne2;
    return p;
}

static __device__ __forceinline__ int64_t rocmfpx_row_offset(const rocmfpx_rows & r, const rocmfpx_place & p) {
    return p.i1 * r.nb1 + p.i2 * r.nb2 + p.i3 * r.nb3;
}

// dst = src for a pair of types of which at least one is ours. Shapes as supports_op promises: whole rows on both
// sides, dst contiguous or rows of whole blocks.
void ggml_cuda_rocmfpx_cpy_decode(const ggml_tensor * src, ggml_tensor * dst, cudaStream_t stream);
void ggml_cuda_rocmfpx_cpy_quantize(const ggml_tensor * src, ggml_tensor * dst, cudaStream_t stream);
void ggml_cuda_rocmfpx_cpy_blocks(const ggml_tensor * src, ggml_tensor * dst, cudaStream_t stream);

// Where a copy writes: a contiguous tensor is one row, whatever its shape.
static inline rocmfpx_rows rocmfpx_target_rows(const ggml_tensor * dst) {
    if (!ggml_is_contiguous(dst)) {
        return rocmfpx_rows_of(dst);
    }
    return {ggml_nelements(dst), 1, 1, 0, 0, 0};
}
