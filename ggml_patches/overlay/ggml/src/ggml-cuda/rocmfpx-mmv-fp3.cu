#include "rocmfpx-mmv-launch.cuh"

ROCMFPX_MMV_INSTANCE(rocmfp3, GGML_TYPE_Q3_0_ROCMFPX)
