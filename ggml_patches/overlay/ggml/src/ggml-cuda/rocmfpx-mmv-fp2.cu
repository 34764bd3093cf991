#include "rocmfpx-mmv-launch.cuh"

ROCMFPX_MMV_INSTANCE(rocmfp2, GGML_TYPE_Q2_0_ROCMFP2)
