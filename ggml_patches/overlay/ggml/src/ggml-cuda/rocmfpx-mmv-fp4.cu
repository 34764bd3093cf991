#include "rocmfpx-mmv-launch.cuh"

ROCMFPX_MMV_INSTANCE(rocmfp4, GGML_TYPE_Q4_0_ROCMFP4)
