#pragma once

// Owns: the functions that upstream's CUDA files call for tensors of the ROCmFPX types. Each hook there is a test of
// the type and one of these calls; what they do is in the rocmfpx-*.cu files and changes without recompiling
// upstream's.

#include "common.cuh"
#include "rocmfpx-mmv.cuh"
#include "rocmfpx-type.cuh"

struct mmq_args;

// convert.cu: blocks to numbers. k and ne00 count weights; s01, s02, s03 count blocks. NULL for other types.
// T: float, half, nv_bfloat16.
template <typename T> using ggml_cuda_rocmfpx_to_t = void (*)(const void * x, T * y, int64_t k, cudaStream_t stream);
template <typename T>
using ggml_cuda_rocmfpx_to_nc_t = void (*)(const void * x, T * y, int64_t ne00, int64_t ne01, int64_t ne02,
                                           int64_t ne03, int64_t s01, int64_t s02, int64_t s03, cudaStream_t stream);
template <typename T> ggml_cuda_rocmfpx_to_t<T> ggml_cuda_rocmfpx_to(ggml_type type);
template <typename T> ggml_cuda_rocmfpx_to_nc_t<T> ggml_cuda_rocmfpx_to_nc(ggml_type type);

// cpy.cu: true if the copy was one of ours and is under way; false leaves it to upstream.
bool ggml_cuda_rocmfpx_cpy(ggml_backend_cuda_context & ctx, const ggml_tensor * src, ggml_tensor * dst);

// set-rows.cu: quantise the rows of dst->src[0] into the rows of dst named by dst->src[1].
void ggml_cuda_rocmfpx_set_rows(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// getrows.cu: as get_rows_cuda, src0_type one of ours, dst_type F32, F16 or BF16.
void ggml_cuda_rocmfpx_get_rows(const void * src0_d, ggml_type src0_type, const int32_t * src1_d, void * dst_d,
                                ggml_type dst_type, int64_t ne00, size_t nb01, size_t nb02, size_t nb03, int64_t ne10,
                                int64_t ne11, int64_t ne12, size_t nb10, size_t nb11, size_t nb12, size_t nb1,
                                size_t nb2, size_t nb3, cudaStream_t stream);

// mmq.cu: the matrix-matrix kernel of args.type_x.
void ggml_cuda_rocmfpx_mul_mat_q(ggml_backend_cuda_context & ctx, const mmq_args & args, cudaStream_t stream);

// Who multiplies: the matrix-vector kernel up to a number of columns (without ids) or tokens (with ids), then MMQ,
// then, where that is faster or MMQ missing, blocks converted to F16 and a library's product.
bool ggml_cuda_rocmfpx_use_mmv(ggml_type type, int cc, int64_t n_columns);
int ggml_cuda_rocmfpx_mmv_max_tokens(ggml_type type, int cc);
bool ggml_cuda_rocmfpx_use_mmq(ggml_type type, int cc, int64_t n_columns, int64_t n_experts);

// ggml-cuda.cu: true if op reads or writes one of our types; then supports_op alone says whether it runs here.
bool ggml_cuda_rocmfpx_involves(const ggml_tensor * op);
bool ggml_cuda_rocmfpx_supports_op(const ggml_tensor * op);

// ggml-cuda.cu, get_proc_address: a function of ours by name, or NULL.
void * ggml_cuda_rocmfpx_proc_address(const char * name);
