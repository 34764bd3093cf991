#include "rocmfpx-mmq.cuh"

DECL_MMQ_CASE(GGML_TYPE_Q8_0_ROCMFPX);
