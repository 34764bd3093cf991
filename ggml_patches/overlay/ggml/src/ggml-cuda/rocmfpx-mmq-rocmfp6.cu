#include "rocmfpx-mmq.cuh"

DECL_MMQ_CASE(GGML_TYPE_Q6_0_ROCMFPX);
