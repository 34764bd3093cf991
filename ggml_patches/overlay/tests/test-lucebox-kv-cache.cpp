// A context refuses a KV cache of a ROCmFPX type with one line that names the type, for keys and for values, and
// before anything else it could object to.

#include "llama-cpp.h"
#include "random-ds4.h"

#include <cstdio>
#include <string>

static int failures = 0;
static std::string errors; // what llama logged as an error

static void expect(bool ok, const std::string & what) {
    if (!ok) {
        fprintf(stderr, "FAILED: %s; logged: %s\n", what.c_str(), errors.c_str());
        failures++;
    }
}

static bool makes_context(llama_model * model, ggml_type type_k, ggml_type type_v) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = 256;
    params.type_k               = type_k;
    params.type_v               = type_v;
    errors.clear();
    llama_context_ptr context{llama_init_from_model(model, params)};
    return context != nullptr;
}

static void test_type(llama_model * model, ggml_type type) {
    const std::string name = ggml_type_name(type);
    for (int which = 1; which <= 3; ++which) {
        const bool made = makes_context(model, which & 1 ? type : GGML_TYPE_F16, which & 2 ? type : GGML_TYPE_F16);
        expect(!made, name + ": accepted");
        expect(errors.find("KV cache of type " + name) != std::string::npos, name + ": not named");
        expect(errors.find('\n') == errors.size() - 1, name + ": more than one line");
    }
}

int main() {
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level == GGML_LOG_LEVEL_ERROR) {
                errors += text;
            }
        },
        nullptr);
    ggml_backend_load_all();
    const random_ds4_shape shape = random_ds4_small();

    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers       = 0;
    std::string error;
    llama_model_ptr model{
        random_ds4_load(shape, {GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, GGML_TYPE_F32, GGML_TYPE_F32}, 1, params, error)};
    expect(model != nullptr, "no model: " + error);
    if (model != nullptr) {
        expect(makes_context(model.get(), GGML_TYPE_F16, GGML_TYPE_F16), "f16 refused");
#define TEST_TYPE(id, suffix, stem, text, bytes) test_type(model.get(), GGML_TYPE_##suffix);
        ROCMFPX_TYPES(TEST_TYPE)
    }
    puts(failures == 0 ? "ok" : "failed");
    return failures != 0;
}
