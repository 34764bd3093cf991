#include "rocmfpx-mmv-launch.cuh"

ROCMFPX_MMV_INSTANCE(rocmfp4_fast, GGML_TYPE_Q4_0_ROCMFP4_FAST)
