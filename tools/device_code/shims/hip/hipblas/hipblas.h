// Stand-in for hipBLAS, which Debian 12 does not package: names that ggml-cuda's host code mentions, no library.
#pragma once

#include <hip/hip_runtime.h>

typedef void * hipblasHandle_t;

enum hipblasStatus_t {
    HIPBLAS_STATUS_SUCCESS,
    HIPBLAS_STATUS_NOT_INITIALIZED,
    HIPBLAS_STATUS_ALLOC_FAILED,
    HIPBLAS_STATUS_INVALID_VALUE,
    HIPBLAS_STATUS_MAPPING_ERROR,
    HIPBLAS_STATUS_EXECUTION_FAILED,
    HIPBLAS_STATUS_INTERNAL_ERROR,
    HIPBLAS_STATUS_NOT_SUPPORTED,
    HIPBLAS_STATUS_ARCH_MISMATCH,
};

enum hipblasOperation_t { HIPBLAS_OP_N, HIPBLAS_OP_T };
enum hipblasSideMode_t { HIPBLAS_SIDE_LEFT, HIPBLAS_SIDE_RIGHT };
enum hipblasFillMode_t { HIPBLAS_FILL_MODE_UPPER, HIPBLAS_FILL_MODE_LOWER };
enum hipblasDiagType_t { HIPBLAS_DIAG_NON_UNIT, HIPBLAS_DIAG_UNIT };
enum hipblasGemmAlgo_t { HIPBLAS_GEMM_DEFAULT };
enum hipblasDatatype_t { HIPBLAS_R_16F, HIPBLAS_R_32F, HIPBLAS_R_16B };
enum hipblasComputeType_t { HIPBLAS_COMPUTE_16F, HIPBLAS_COMPUTE_32F, HIPBLAS_COMPUTE_32F_FAST_16F };

// Declared for any arguments: their real signatures are ROCm's to check, on a machine that has it.
#define LUCEBOX_SHIM_CALL(name) template <typename... Arguments> hipblasStatus_t name(Arguments...)
LUCEBOX_SHIM_CALL(hipblasCreate);
LUCEBOX_SHIM_CALL(hipblasDestroy);
LUCEBOX_SHIM_CALL(hipblasSetStream);
LUCEBOX_SHIM_CALL(hipblasGemmEx);
LUCEBOX_SHIM_CALL(hipblasGemmBatchedEx);
LUCEBOX_SHIM_CALL(hipblasGemmStridedBatchedEx);
LUCEBOX_SHIM_CALL(hipblasSgemm);
LUCEBOX_SHIM_CALL(hipblasSgemmBatched);
LUCEBOX_SHIM_CALL(hipblasSgemmStridedBatched);
LUCEBOX_SHIM_CALL(hipblasStrsmBatched);
#undef LUCEBOX_SHIM_CALL
