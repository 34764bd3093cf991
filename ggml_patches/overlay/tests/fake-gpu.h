#pragma once

// Owns: a back-end that looks like a GPU to llama.cpp, for tests of what is placed where. Its memory is this machine's
// under another name; what it has kernels for is a function that the test sets.
// Refuses: to compute.

#include "ggml-backend.h"
#include "ggml.h"

#include <functional>

// Tells whether the device has a kernel for an op. Set before a model is loaded.
extern std::function<bool(const ggml_tensor *)> fake_gpu_supports;

// Register the back-end under this name ("CUDA", "ROCm"), with one device NAME0 or none. Once a process for each name.
void fake_gpu_register(const char * name, bool with_device);
