#pragma once

#include "ggml-backend.h"

#include <vector>

// Appends the buffer type that keeps ROCmFPX weights in bands of 16 rows, where this machine has kernels for them.
void ggml_backend_cpu_rocmfpx_add_buffer_type(std::vector<ggml_backend_buffer_type_t> & list);
