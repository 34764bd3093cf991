#pragma once

// Owns: products of repacked ROCmFPX weights, MUL_MAT and MUL_MAT_ID, on all threads of a graph.

#include "ggml-cpu-impl.h"
#include "ggml.h"

// Whether op is a product this file computes, apart from where its tensors lie.
bool rocmfpx_matmul_supports(const ggml_tensor * op);

size_t rocmfpx_matmul_work_size(const ggml_tensor * op, int n_threads);

void rocmfpx_matmul(const ggml_compute_params * params, ggml_tensor * op);
