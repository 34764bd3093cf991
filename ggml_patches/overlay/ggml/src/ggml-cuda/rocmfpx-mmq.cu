// Owns: the choice of the MMQ instance by type.

#include "mmq.cuh"
#include "rocmfpx.cuh"

#define EXTERN_MMQ_CASE(id, suffix, stem, name, bytes) extern DECL_MMQ_CASE(GGML_TYPE_##suffix);
ROCMFPX_TYPES(EXTERN_MMQ_CASE)

void ggml_cuda_rocmfpx_mul_mat_q(ggml_backend_cuda_context & ctx, const mmq_args & args, cudaStream_t stream) {
    switch (args.type_x) {
#define CASE_MUL_MAT_Q(id, suffix, stem, name, bytes)                                                                  \
    case GGML_TYPE_##suffix:                                                                                           \
        return mul_mat_q_case<GGML_TYPE_##suffix, GGML_PREC_Q8>(ctx, args, stream);
        ROCMFPX_TYPES(CASE_MUL_MAT_Q)
        default:
            GGML_ABORT("%s: unsupported type %s", __func__, ggml_type_name(args.type_x));
    }
}
