// Owns: what is refused when a device lacks a kernel for a weight or an op, when fitting leaves layers to the CPU, and
// when a GPU build finds no GPU; and that programs which never ask for it see upstream's behaviour.

#include "../src/lucebox-device-policy.h"
#include "fake-gpu.h"
#include "ggml-cpp.h"
#include "gguf.h"
#include "llama-cpp.h"
#include "random-ds4.h"

#include <cstdio>
#include <string>

static int n_failed = 0;
static std::string log_text;

static void expect(bool ok, const std::string & what) {
    if (!ok) {
        fprintf(stderr, "FAILED: %s\nlog: %s\n", what.c_str(), log_text.c_str());
        n_failed++;
    }
}

static bool logged(const std::string & part) {
    return log_text.find(part) != std::string::npos;
}

// Load a small model of F32 weights with routed experts of Q8_0 and make a context, neither with memory of its own.
// Returns "no model", "no context" or "ready".
static std::string load(int n_gpu_layers) {
    const random_ds4_shape shape = random_ds4_small();

    auto mparams         = llama_model_default_params();
    mparams.n_gpu_layers = n_gpu_layers;
    mparams.no_alloc     = true;
    log_text.clear();
    std::string error;
    llama_model_ptr model{
        random_ds4_load(shape, {GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, GGML_TYPE_F32, GGML_TYPE_F32}, 1, mparams, error)};
    if (!model) {
        return "no model";
    }
    auto cparams            = llama_context_default_params();
    cparams.n_ctx           = 512;
    cparams.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    llama_context_ptr ctx{llama_init_from_model(model.get(), cparams)};
    return ctx ? "ready" : "no context";
}

static bool lacks_q8_0(const ggml_tensor * op) {
    return op->op == GGML_OP_MUL_MAT_ID && op->src[0]->type == GGML_TYPE_Q8_0;
}

static void test_weights() {
    fake_gpu_supports = [](const ggml_tensor * op) { return !lacks_q8_0(op); };
    expect(load(99) == "ready", "not asked for: the weight moves to the CPU");
    lucebox_require_device_kernels(true);
    expect(load(99) == "no model", "a weight without kernel is refused");
    expect(logged("of type q8_0 has no MUL_MAT_ID kernel on device ROCm0") && logged("blk.0.ffn_") &&
               logged("--allow-cpu"),
           "the refusal names tensor, type, op, device and remedy");
    expect(load(0) == "ready", "layers that the caller gave to the CPU are not concerned");
    lucebox_require_device_kernels(false);
    expect(load(99) == "ready", "permitted again");
}

static void test_ops() {
    lucebox_require_device_kernels(true);
    fake_gpu_supports = [](const ggml_tensor *) { return true; };
    expect(load(99) == "ready", "a device with every kernel takes everything but the input embedding");
    for (const ggml_op lacking : {GGML_OP_FLASH_ATTN_EXT, GGML_OP_TOP_K, GGML_OP_RMS_NORM, GGML_OP_CONCAT}) {
        fake_gpu_supports      = [lacking](const ggml_tensor * op) { return op->op != lacking; };
        const std::string name = ggml_op_name(lacking);
        expect(load(99) == "no context", name + ": an op without kernel is refused");
        expect(logged("op " + name + " (of ") && logged("of tensor '") && logged("has no kernel on device ROCm0"),
               name + ": the refusal names op, types, tensor and device");
        expect(load(0) == "ready", name + ": layers on the CPU are not concerned");
    }
    lucebox_require_device_kernels(false);
    expect(load(99) == "ready", "permitted again");
    fake_gpu_supports = [](const ggml_tensor *) { return true; };
}

static void test_fit() {
    const char * path = "test-lucebox-device-policy.gguf";
    const gguf_context_ptr file{gguf_init_empty()};
    gguf_set_val_str(file.get(), "general.architecture", "deepseek4");
    gguf_set_val_u32(file.get(), "deepseek4.block_count", 9);
    gguf_set_val_u32(file.get(), "deepseek4.nextn_predict_layers", 1);
    expect(gguf_write_to_file(file.get(), path, true), "write a header");

    const auto before = llama_model_default_params();
    auto fitted       = before;
    expect(!lucebox_refuses_fit(path, before, fitted), "fit: not in force");
    lucebox_require_device_kernels(true);
    expect(!lucebox_refuses_fit(path, before, fitted), "fit: nothing changed");
    fitted.n_gpu_layers = 9; // eight layers and the output
    expect(!lucebox_refuses_fit(path, before, fitted), "fit: spread over GPUs");
    const llama_model_tensor_buft_override held[] = {{"exps", ggml_backend_cpu_buffer_type()}, {nullptr, nullptr}};
    fitted.tensor_buft_overrides                  = held;
    expect(lucebox_refuses_fit(path, before, fitted), "fit: experts held back");
    fitted.tensor_buft_overrides = nullptr;
    fitted.n_gpu_layers          = 8;
    expect(lucebox_refuses_fit(path, before, fitted), "fit: a layer left out");
    lucebox_require_device_kernels(false);
    remove(path);
}

int main() {
    llama_log_set([](ggml_log_level, const char * text, void *) { log_text += text; }, nullptr);
    expect(lucebox_absent_gpu().empty(), "a CPU build lacks no GPU");
    fake_gpu_register("CUDA", false);
    expect(lucebox_absent_gpu() == "CUDA", "a back-end without device is named");
    fake_gpu_register("ROCm", true);
    expect(lucebox_absent_gpu().empty(), "a device of another back-end will do");
    test_weights();
    test_ops();
    test_fit();
    printf("%s", n_failed ? "" : "ok\n");
    return n_failed != 0;
}
