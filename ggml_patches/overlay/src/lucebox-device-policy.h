#pragma once

// Owns: the rule that nothing runs on the CPU that was given to a GPU. Upstream moves a weight whose type a device
// cannot read to a CPU buffer, runs an op that a device lacks on the CPU, and gives layers that do not fit to the CPU;
// where the rule is in force each of these is an error that names type or op, device and tensor.
// Not concerned: what the caller put on the CPU (fewer GPU layers, buffer overrides, a cache kept off the device) and
// what upstream always keeps there (the input embedding).

#include "ggml-backend.h"
#include "llama.h"

#include <functional>
#include <string>
#include <utility>

// Put the rule in force or lift it, for every model and context of this process made later. Not in force at start, so
// programs that never call this see upstream's behaviour.
LLAMA_API void lucebox_require_device_kernels(bool require);
LLAMA_API bool lucebox_requires_device_kernels();

// Name of a GPU back-end of this build for which the machine has no device, while no other GPU is there either;
// empty otherwise. Devices of other machines count.
LLAMA_API std::string lucebox_absent_gpu();

// True if fitting a model to the memory of GPUs left layers or weights of it to the CPU and the rule is in force.
// before, fitted: parameters as the caller gave them and as they are now; the file tells how many layers there are.
LLAMA_API bool lucebox_refuses_fit(const char * path_model, const llama_model_params & before,
                                   const llama_model_params & fitted);

// Check where the loader puts a weight. wanted: device and memory that it tries first; chosen: the memory it takes.
// Throws std::runtime_error if a GPU's memory was wanted, the CPU's is taken and the rule is in force.
void lucebox_check_weight(const ggml_tensor * weight, ggml_op op,
                          const std::pair<ggml_backend_dev_t, ggml_backend_buffer_type_t> & wanted,
                          ggml_backend_buffer_type_t chosen);

// Check where sched runs the nodes of a graph that it has split. device_of_layer: the device a layer is given to;
// layer -1 asks for the device of nodes that belong to no layer, NULL if that is left to the scheduler.
// Throws std::runtime_error for the first node on the CPU for want of a kernel, if the rule is in force.
void lucebox_check_graph(ggml_cgraph * graph, ggml_backend_sched_t sched,
                         const std::function<ggml_backend_dev_t(int)> & device_of_layer);
