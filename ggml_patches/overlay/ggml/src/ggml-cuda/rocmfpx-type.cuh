#pragma once

// Owns: what upstream's mmq.cuh must know about the ROCmFPX types at compile time. Every edit here recompiles all
// of its instances, upstream's too, so nothing else belongs here.

#include "common.cuh"

// A switch over ids: one label a type.
#define ROCMFPX_CUDA_CASE(id, suffix, stem, name, bytes) case GGML_TYPE_##suffix:

static constexpr __host__ __device__ bool ggml_cuda_rocmfpx_is_type(ggml_type type) {
    switch (type) {
        ROCMFPX_TYPES(ROCMFPX_CUDA_CASE)
        return true;
        default:
            return false;
    }
}

// The upstream type whose tile in shared memory, launch shape and dot product a type takes over in MMQ: int8 levels
// with one float scale per 32 (Q8_0) or per 16 (IQ2_S). Only the way codes become levels is ours.
static constexpr __host__ __device__ ggml_type ggml_cuda_rocmfpx_mmq_like(ggml_type type) {
    return type == GGML_TYPE_Q4_0_ROCMFP4_FAST || type == GGML_TYPE_Q8_0_ROCMFPX ? GGML_TYPE_Q8_0 : GGML_TYPE_IQ2_S;
}
