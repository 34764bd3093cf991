// Stand-in for cuBLAS, so that headers and kernels compile where only nvcc is installed; no library.
#pragma once

#include <cstddef>
#include <cuda_runtime.h>

typedef struct cublasContext * cublasHandle_t;

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS };
enum cublasMath_t { CUBLAS_TF32_TENSOR_OP_MATH };

const char * cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasCreate(cublasHandle_t * handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void * workspace, std::size_t size);
