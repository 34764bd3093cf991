#include "rocmfpx-mmq.cuh"

DECL_MMQ_CASE(GGML_TYPE_Q2_0_ROCMFP2);
