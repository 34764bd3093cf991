#include "rocmfpx-mmq.cuh"

DECL_MMQ_CASE(GGML_TYPE_Q4_0_ROCMFP4);
