#pragma once

// Owns: up to how many columns the matrix-vector kernel is faster than MMQ, by class of device and type.
// Each row is a measurement, named beside it; where there is none, upstream's limit for the class stands.

#include "common.cuh"
#include "ggml-rocmfpx-gpu.h"

enum rocmfpx_device_class {
    ROCMFPX_DEVICE_OTHER,
    ROCMFPX_DEVICE_TURING, // and Ampere
    ROCMFPX_DEVICE_ADA,
    ROCMFPX_DEVICE_HOPPER,
    ROCMFPX_DEVICE_BLACKWELL,
    ROCMFPX_DEVICE_RDNA2, // and older
    ROCMFPX_DEVICE_RDNA3,
    ROCMFPX_DEVICE_RDNA3_5,
    ROCMFPX_DEVICE_RDNA4,
    ROCMFPX_DEVICE_CLASSES
};

static inline rocmfpx_device_class rocmfpx_device_class_of(int cc) {
    if (GGML_CUDA_CC_IS_NVIDIA(cc)) {
        return cc >= GGML_CUDA_CC_BLACKWELL      ? ROCMFPX_DEVICE_BLACKWELL
               : cc >= GGML_CUDA_CC_HOPPER       ? ROCMFPX_DEVICE_HOPPER
               : cc >= GGML_CUDA_CC_ADA_LOVELACE ? ROCMFPX_DEVICE_ADA
               : cc >= GGML_CUDA_CC_TURING       ? ROCMFPX_DEVICE_TURING
                                                 : ROCMFPX_DEVICE_OTHER;
    }
    return GGML_CUDA_CC_IS_RDNA4(cc)     ? ROCMFPX_DEVICE_RDNA4
           : GGML_CUDA_CC_IS_RDNA3_5(cc) ? ROCMFPX_DEVICE_RDNA3_5
           : GGML_CUDA_CC_IS_RDNA3(cc)   ? ROCMFPX_DEVICE_RDNA3
           : GGML_CUDA_CC_IS_RDNA(cc)    ? ROCMFPX_DEVICE_RDNA2
                                         : ROCMFPX_DEVICE_OTHER;
}

// Columns and tokens, in the order of ROCMFPX_TYPES: FP4, FP4_FAST, FP6, FP8, FP3, FP2.
#define ROCMFPX_TYPE_COUNT 6
struct rocmfpx_mmv_limit {
    int columns, tokens;
};
static constexpr rocmfpx_mmv_limit rocmfpx_mmv_limits[ROCMFPX_DEVICE_CLASSES][ROCMFPX_TYPE_COUNT] = {
    /* OTHER     */ {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}},
    /* TURING    */ {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}},
    /* ADA       */ {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}},
    /* HOPPER    */ {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}},
    /* BLACKWELL */ {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}},
    /* RDNA2     */ {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}},
    /* RDNA3     */ {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}},
    /* RDNA3_5   */ {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}},
    /* RDNA4     */ {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}},
};
