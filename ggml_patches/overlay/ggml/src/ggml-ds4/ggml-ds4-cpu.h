#pragma once

// Owns: the CPU side of the fused DeepSeek-V4 ops, GGML_OP_DS4_HC and GGML_OP_DS4_COMPRESS.

#include "ggml.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;

// True unless op is a DS4 op that the CPU back-end has no code for.
bool ggml_ds4_cpu_supports_op(const struct ggml_tensor * op);

// Computes this thread's share of a DS4 op. Only called for ops that ggml_ds4_cpu_supports_op accepts.
void ggml_ds4_cpu_compute_forward(const struct ggml_compute_params * params, struct ggml_tensor * dst);

#ifdef __cplusplus
}
#endif
