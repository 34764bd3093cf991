#include "rocmfpx-mmv-launch.cuh"

ROCMFPX_MMV_INSTANCE(rocmfp6, GGML_TYPE_Q6_0_ROCMFPX)
