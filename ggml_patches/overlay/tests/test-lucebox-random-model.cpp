// Random DeepSeek-V4 models: same seed, same bytes; read in any order, same bytes; every mix of types loads, passes
// the loader's own check of its data and decodes to finite logits; what cannot run is refused with a reason.
// With --save FILE MIX it only writes the bytes of one small model, for readers of other languages to check.

#include "random-ds4.h"

#include "ggml-backend.h"
#include "llama-cpp.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <sys/types.h>
#include <vector>

static int n_failed = 0;

static void expect(bool ok, const std::string & what) {
    n_failed += !ok;
    printf("%s %s\n", ok ? "ok  " : "FAIL", what.c_str());
}

// Every kind of layer, rows that every block type divides.
static random_ds4_shape small_shape() {
    random_ds4_shape shape;
    shape.ratios    = {0, 4, 128, 4};
    shape.n_embd    = 256;
    shape.n_vocab   = 128;
    shape.n_head    = 8;
    shape.head_size = 512;
    shape.q_rank    = 256;
    shape.o_groups  = 8;
    shape.o_rank    = 32;
    shape.n_expert  = 16;
    shape.n_ff      = 256;
    shape.n_window  = 32;
    return shape;
}

struct mix {
    const char * name;
    const char * types[4]; // gate and up, down, dense, embedding
};

static const mix MIXES[] = {
    {"f32", {"f32", "f32", "f32", "f32"}},
    {"bf16", {"bf16", "bf16", "bf16", "bf16"}},
    {"q8_0", {"q8_0", "q8_0", "q8_0", "q8_0"}},
    {"upstream-small", {"q2_K", "q3_K", "mxfp4", "q6_K"}},
    {"upstream-iq", {"iq2_xxs", "iq3_s", "iq4_xs", "q4_0"}},
    {"lucebox-small", {"q2_0_rocmfp2", "q3_0_rocmfpx", "q4_0_rocmfp4_fast", "q4_0_rocmfp4_fast"}},
    {"lucebox-large", {"q4_0_rocmfp4", "q6_0_rocmfpx", "q8_0_rocmfpx", "q6_0_rocmfpx"}},
};

static bool find_types(const mix & m, random_ds4_types & types) {
    types = {random_ds4_type(m.types[0]), random_ds4_type(m.types[1]), random_ds4_type(m.types[2]),
             random_ds4_type(m.types[3])};
    for (const ggml_type type : {types.gate_up, types.down, types.dense, types.embedding}) {
        if (type == GGML_TYPE_COUNT) {
            return false;
        }
    }
    return true;
}

// Whole contents, read chunk bytes at a time, from the last chunk to the first if backwards; empty on failure.
static std::vector<char> contents(const random_ds4_types & types, uint64_t seed, size_t chunk, bool backwards) {
    std::string error;
    FILE * file = random_ds4_open(small_shape(), types, seed, error);
    if (file == nullptr) {
        return {};
    }
    fseeko(file, 0, SEEK_END);
    std::vector<char> all(ftello(file));
    const size_t n_chunks = (all.size() + chunk - 1) / chunk;
    for (size_t i = 0; i < n_chunks; i++) {
        const size_t at = (backwards ? n_chunks - 1 - i : i) * chunk;
        const size_t n  = std::min(chunk, all.size() - at);
        if (fseeko(file, at, SEEK_SET) != 0 || fread(all.data() + at, 1, n, file) != n) {
            fclose(file);
            return {};
        }
    }
    fclose(file);
    return all;
}

static void test_bytes() {
    const random_ds4_types types = {GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_F32, GGML_TYPE_BF16};
    const std::vector<char> once = contents(types, 1, 1 << 20, false);
    expect(!once.empty(), "a model opens and can be read whole");
    expect(once == contents(types, 1, 1 << 20, false), "same seed, same bytes");
    expect(once == contents(types, 1, 10007, true), "same bytes in odd chunks from the end");
    expect(once != contents(types, 2, 1 << 20, false), "other seed, other bytes");
}

// Feeds a prompt long enough to complete blocks of every ratio, then n single tokens. Returns the logits of all
// those; empty if something failed.
static std::vector<float> decode(llama_model * model, int n_prompt, int n) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = n_prompt + n;
    params.n_batch              = params.n_ctx;
    params.n_threads            = 1;
    params.n_threads_batch      = 1;
    llama_context_ptr context(llama_init_from_model(model, params));
    if (!context) {
        return {};
    }
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<float> logits;
    for (int i = 0; i <= n; i++) {
        std::vector<llama_token> tokens(i == 0 ? n_prompt : 1);
        for (size_t k = 0; k < tokens.size(); k++) {
            tokens[k] = (31 * (i + k) + 7) % n_vocab;
        }
        if (llama_decode(context.get(), llama_batch_get_one(tokens.data(), tokens.size())) != 0) {
            return {};
        }
        const float * row = llama_get_logits_ith(context.get(), -1);
        logits.insert(logits.end(), row, row + n_vocab);
    }
    return logits;
}

// Standard deviation of the logits, or -1 if one of them is not finite.
static double spread(const std::vector<float> & logits) {
    double sum = 0, squares = 0;
    for (const float x : logits) {
        if (!std::isfinite(x)) {
            return -1;
        }
        sum += x;
        squares += (double) x * x;
    }
    return logits.empty() ? -1 : sqrt(squares / logits.size() - pow(sum / logits.size(), 2));
}

static void test_mix(const mix & m) {
    const std::string name = m.name;
    random_ds4_types types;
    if (!find_types(m, types)) {
        expect(false, name + ": every type is known to this build");
        return;
    }
    std::string error;
    llama_model_params params = llama_model_default_params();
    params.check_tensors      = true;
    std::vector<float> logits[3];
    for (const int i : {0, 1, 2}) {
        llama_model_ptr model(random_ds4_load(small_shape(), types, i == 2 ? 2 : 1, params, error));
        expect(model != nullptr, name + ": loads" + (error.empty() ? "" : ": " + error));
        if (model) {
            logits[i] = decode(model.get(), 140, 16);
        }
    }
    const double deviation = spread(logits[0]);
    expect(deviation > 0.1 && deviation < 10,
           name + ": 17 rows of finite logits, deviation " + std::to_string(deviation));
    expect(logits[0] == logits[1], name + ": same seed, same logits");
    expect(logits[0] != logits[2], name + ": other seed, other logits");
}

static void test_refusal(const char * what, void (*change)(random_ds4_shape &, random_ds4_types &), const char * word) {
    random_ds4_shape shape = small_shape();
    random_ds4_types types = {GGML_TYPE_F32, GGML_TYPE_F32, GGML_TYPE_F32, GGML_TYPE_F32};
    change(shape, types);
    std::string error;
    FILE * file = random_ds4_open(shape, types, 1, error);
    expect(file == nullptr && error.find(word) != std::string::npos, std::string("refused: ") + what + ": " + error);
    if (file != nullptr) {
        fclose(file);
    }
}

static void test_refusals() {
    typedef random_ds4_shape shape;
    typedef random_ds4_types types;
    test_refusal("heads like indexer heads", [](shape & s, types &) { s.head_size = s.index_head; }, "same size");
    test_refusal("ratio 8", [](shape & s, types &) { s.ratios[1] = 8; }, "ratio 8");
    test_refusal("more experts used than there are", [](shape & s, types &) { s.n_expert_used = 17; }, "experts");
    test_refusal("heads and groups", [](shape & s, types &) { s.o_groups = 3; }, "groups");
    test_refusal(
        "part of a block",
        [](shape & s, types & t) {
            s.n_ff = 128;
            t.down = GGML_TYPE_Q3_K;
        },
        "ffn_down_exps");
}

static int save(const char * path, const char * name) {
    for (const mix & m : MIXES) {
        random_ds4_types types;
        if (strcmp(m.name, name) == 0 && find_types(m, types)) {
            const std::vector<char> all = contents(types, 1, 1 << 20, false);
            FILE * file                 = fopen(path, "wb");
            const bool ok = file != nullptr && !all.empty() && fwrite(all.data(), 1, all.size(), file) == all.size();
            return file != nullptr && fclose(file) == 0 && ok ? 0 : 1;
        }
    }
    fprintf(stderr, "no mix '%s' of types known to this build\n", name);
    return 2;
}

int main(int argc, char ** argv) {
    if (argc == 4 && strcmp(argv[1], "--save") == 0) {
        return save(argv[2], argv[3]);
    }
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level == GGML_LOG_LEVEL_ERROR) {
                fputs(text, stderr);
            }
        },
        nullptr);
    ggml_backend_load_all();
    test_bytes();
    test_refusals();
    for (const mix & m : MIXES) {
        test_mix(m);
    }
    return n_failed == 0 ? 0 : 1;
}
