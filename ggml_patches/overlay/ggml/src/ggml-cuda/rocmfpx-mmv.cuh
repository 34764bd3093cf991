#pragma once

// Owns: the entry points of the matrix-vector kernels of the ROCmFPX types; rocmfpx-mmv*.cu implements them.
// mmvq.cu includes this file through rocmfpx.cuh: an edit recompiles mmvq.cu, so nothing else belongs here.

#include "common.cuh"

// Most columns of one product, as MMVQ_MAX_BATCH_SIZE: columns of src1, or tokens when experts are chosen by ids.
#define ROCMFPX_MMV_MAX_COLUMNS 8

// True if the device class cc has a kernel of this type for every contract of ggml_cuda_rocmfpx_mul_mat_vec.
bool ggml_cuda_rocmfpx_mmv_supported(ggml_type type, int cc);

// dst = src0 * src1, as ggml_cuda_mul_mat_vec_q: src0 in a ROCmFPX type, src1 and dst F32.
// ids: NULL, or I32 [experts used, tokens]. Without ids at most ROCMFPX_MMV_MAX_COLUMNS columns (src1->ne[1]),
// with ids at most as many tokens (src1->ne[2]). fusion: NULL, or bias, gate and GLU (with the limit of the clamped
// SwiGLU), routed and shared experts in one launch; then one column without ids.
// Each column of a product of n equals the product of that column alone, bit for bit.
void ggml_cuda_rocmfpx_mul_mat_vec(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
                                   const ggml_tensor * ids, ggml_tensor * dst,
                                   const ggml_cuda_mm_fusion_args_host * fusion);
