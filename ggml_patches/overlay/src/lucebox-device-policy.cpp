#include "lucebox-device-policy.h"

#include "ggml-cpp.h"
#include "gguf.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

static std::atomic<bool> required{false};

static const char * const REMEDY = "; store it in another type, or run it on the CPU with --allow-cpu";

void lucebox_require_device_kernels(bool require) {
    required = require;
}

bool lucebox_requires_device_kernels() {
    return required;
}

static bool is_gpu(ggml_backend_dev_t device) {
    const auto type = device ? ggml_backend_dev_type(device) : GGML_BACKEND_DEVICE_TYPE_CPU;
    return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
}

static bool has_gpu() {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        if (is_gpu(ggml_backend_dev_get(i))) {
            return true;
        }
    }
    return false;
}

std::string lucebox_absent_gpu() {
    // back-ends that exist for GPUs of this machine; each is registered with no device when there is none
    static const char * const names[] = {"CUDA", "ROCm", "MUSA", "Vulkan", "SYCL", "MTL"};
    if (has_gpu()) {
        return "";
    }
    for (const char * name : names) {
        if (ggml_backend_reg_by_name(name)) {
            return name;
        }
    }
    return "";
}

// Layers that count as "all" for n_gpu_layers, without the output; 0 if the file does not tell.
static int layers_of(const char * path_model, bool with_nextn) {
    gguf_context_ptr file{gguf_init_from_file(path_model, {/*.no_alloc =*/true, /*.ctx =*/nullptr})};
    const int64_t key = file ? gguf_find_key(file.get(), "general.architecture") : -1;
    if (key < 0 || gguf_get_kv_type(file.get(), key) != GGUF_TYPE_STRING) {
        return 0;
    }
    const std::string arch = gguf_get_val_str(file.get(), key);
    const auto number      = [&](const char * name) {
        const int64_t id = gguf_find_key(file.get(), (arch + name).c_str());
        return id >= 0 && gguf_get_kv_type(file.get(), id) == GGUF_TYPE_UINT32 ? (int) gguf_get_val_u32(file.get(), id)
                                                                                    : 0;
    };
    return number(".block_count") - (with_nextn ? 0 : number(".nextn_predict_layers"));
}

bool lucebox_refuses_fit(const char * path_model, const llama_model_params & before,
                         const llama_model_params & fitted) {
    if (!required || !has_gpu() || fitted.n_gpu_layers == before.n_gpu_layers) {
        return false; // fitting sets both, or leaves both alone
    }
    for (auto * o = fitted.tensor_buft_overrides; o && o->pattern; o++) {
        if (ggml_backend_buft_is_host(o->buft)) {
            return true;
        }
    }
    return fitted.n_gpu_layers <= layers_of(path_model, fitted.load_mtp);
}

void lucebox_check_weight(const ggml_tensor * weight, ggml_op op,
                          const std::pair<ggml_backend_dev_t, ggml_backend_buffer_type_t> & wanted,
                          ggml_backend_buffer_type_t chosen) {
    ggml_backend_dev_t device = wanted.first;
    // weights for the CPU are tried in the pinned memory of a GPU first, under that GPU's name
    const bool for_cpu = !is_gpu(device) || wanted.second == ggml_backend_dev_host_buffer_type(device);
    if (!required || for_cpu ||
        (!ggml_backend_buft_is_host(chosen) && ggml_backend_buft_get_device(chosen) == device)) {
        return;
    }
    throw std::runtime_error(std::string("tensor '") + weight->name + "' of type " + ggml_type_name(weight->type) +
                             " has no " + ggml_op_name(op) + " kernel on device " + ggml_backend_dev_name(device) +
                             REMEDY);
}

// Layer of a node by the number at the end of its name ("ffn_out-12"), -1 if it has none.
static int layer_of(const ggml_tensor * node) {
    const char * dash = strrchr(node->name, '-');
    char * end        = nullptr;
    const long il     = dash && dash[1] >= '0' && dash[1] <= '9' ? strtol(dash + 1, &end, 10) : -1;
    return end && (*end == 0 || *end == ' ') ? (int) il : -1; // " (view)" and the like may follow
}

static bool is_elsewhere(const ggml_tensor * tensor, ggml_backend_dev_t device) {
    const ggml_tensor * base = tensor && tensor->view_src ? tensor->view_src : tensor;
    return base && base->buffer && ggml_backend_buffer_is_host(base->buffer) &&
           ggml_backend_buffer_get_type(base->buffer) != ggml_backend_dev_buffer_type(device);
}

// True if a node works on memory that lies on the CPU already: weights or a cache, placed there before and on purpose.
static bool uses_host_memory(const ggml_tensor * node, ggml_backend_dev_t device) {
    bool found = is_elsewhere(node, device);
    for (const ggml_tensor * src : node->src) {
        found |= is_elsewhere(src, device);
    }
    return found;
}

static bool computes_nothing(const ggml_tensor * node) {
    return node->op == GGML_OP_NONE || node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE ||
           node->op == GGML_OP_PERMUTE || node->op == GGML_OP_TRANSPOSE;
}

[[noreturn]] static void refuse_node(const ggml_tensor * node, ggml_backend_dev_t device) {
    std::string types;
    for (const ggml_tensor * src : node->src) {
        if (src) {
            types += (types.empty() ? "" : ", ") + std::string(ggml_type_name(src->type));
        }
    }
    throw std::runtime_error(std::string("op ") + ggml_op_desc(node) + " (of " + types + ") of tensor '" + node->name +
                             "' has no kernel on device " + ggml_backend_dev_name(device) + REMEDY);
}

void lucebox_check_graph(ggml_cgraph * graph, ggml_backend_sched_t sched,
                         const std::function<ggml_backend_dev_t(int)> & device_of_layer) {
    for (int i = 0; required && i < ggml_graph_n_nodes(graph); i++) {
        ggml_tensor * node        = ggml_graph_node(graph, i);
        ggml_backend_t backend    = ggml_backend_sched_get_tensor_backend(sched, node);
        ggml_backend_dev_t device = device_of_layer(layer_of(node));
        if (computes_nothing(node) || !backend || !is_gpu(device)) {
            continue;
        }
        if (!is_gpu(ggml_backend_get_device(backend)) && !uses_host_memory(node, device) &&
            !ggml_backend_dev_supports_op(device, node)) {
            refuse_node(node, device);
        }
    }
}
