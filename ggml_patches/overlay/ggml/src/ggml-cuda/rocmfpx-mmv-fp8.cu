#include "rocmfpx-mmv-launch.cuh"

ROCMFPX_MMV_INSTANCE(rocmfp8, GGML_TYPE_Q8_0_ROCMFPX)
