#include "rocmfpx-mmq.cuh"

DECL_MMQ_CASE(GGML_TYPE_Q3_0_ROCMFPX);
