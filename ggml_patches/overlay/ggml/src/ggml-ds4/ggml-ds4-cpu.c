// Owns: the CPU side of the fused DeepSeek-V4 ops. Their ids are reserved; no mode has code yet, so every one is
// refused when the scheduler asks, and a graph that was computed without asking stops with the op's name.

#include "ggml-ds4-cpu.h"

bool ggml_ds4_cpu_supports_op(const struct ggml_tensor * op) {
    return op->op != GGML_OP_DS4_HC && op->op != GGML_OP_DS4_COMPRESS;
}

void ggml_ds4_cpu_compute_forward(const struct ggml_compute_params * params, struct ggml_tensor * dst) {
    (void) params;
    GGML_ABORT("%s: the CPU back-end has no code for this op; ask supports_op first", ggml_op_name(dst->op));
}
