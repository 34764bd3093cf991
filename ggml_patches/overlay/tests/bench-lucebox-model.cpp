// Decode and prompt speed of DeepSeek-V4-shaped random models that differ only in the types of their weights. All
// arms stay loaded in this process, each in the layout the loader picks for its types. docs/benchmarks.md has the
// contract: --list, --serve, one JSON object a line on stdout. Without either, rounds of A B B A of every case.

#include "random-ds4.h"

#include "ggml-backend.h"
#include "llama-cpp.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

static const char * USAGE =
    "usage: bench-lucebox-model [--list | --serve | --rounds N] [options]\n"
    "  --arm NAME=GATE_UP,DOWN,DENSE[,EMBEDDING]   types of one arm, repeatable; embedding defaults to dense\n"
    "  --threads N,...    one set of cases each (default: 1,2)\n"
    "  --prompt N         tokens of a prompt case (default: 128)\n"
    "  --decode N         tokens of a decode case (default: 16), after --depth N others (default: 32)\n"
    "  --ratios N,...     compression ratio of each layer (default: 0,4,128,4,128,4)\n"
    "  --hidden N --vocab N --heads N --head-size N --experts N --experts-used N --ff N --hash-layers N\n"
    "                     other sizes (default: the real ones, 16 experts, vocabulary 18048)\n"
    "  --gpu-layers N     layers on a GPU if there is one (default: all)\n"
    "  --seed N           weights and tokens (default: 1)\n";

static const std::pair<const char *, const char *> DEFAULT_ARMS[] = {
    {"lucebox", "q2_0_rocmfp2,q3_0_rocmfpx,q4_0_rocmfp4_fast"},
    {"upstream", "q2_K,q3_K,mxfp4"},
};

struct bench_options {
    random_ds4_shape shape;
    std::vector<std::pair<std::string, random_ds4_types>> arms;
    std::vector<int> threads = {1, 2};
    int n_prompt             = 128;
    int n_decode             = 16;
    int n_depth              = 32;
    int gpu_layers           = -1;
    int rounds               = 8;
    uint64_t seed            = 1;
    std::string mode         = "--rounds";
};

struct bench_case {
    std::string name;
    bool decode;
    int n_threads;
};

struct bench_arm {
    std::string name;
    llama_model_ptr model;
    llama_context_ptr context;
};

[[noreturn]] static void fail(const std::string & problem, int status) {
    fprintf(stderr, "error: %s\n", problem.c_str());
    exit(status);
}

static std::vector<std::string> split(const std::string & text, char separator) {
    std::vector<std::string> words;
    std::stringstream stream(text);
    for (std::string word; std::getline(stream, word, separator);) {
        words.push_back(word);
    }
    return words;
}

static int number(const std::string & text) {
    char * end       = nullptr;
    const long value = strtol(text.c_str(), &end, 10);
    if (text.empty() || *end != 0 || value < -1 || value > INT32_MAX) {
        fail("'" + text + "' is not a number", 2);
    }
    return value;
}

static std::vector<int> numbers(const std::string & text) {
    std::vector<int> values;
    for (const std::string & word : split(text, ',')) {
        values.push_back(number(word));
    }
    return values;
}

static random_ds4_types parse_types(const std::string & text) {
    std::vector<std::string> names = split(text, ',');
    if (names.size() == 3) {
        names.push_back(names[2]);
    }
    if (names.size() != 4) {
        fail("'" + text + "' does not name three or four types", 2);
    }
    ggml_type types[4];
    for (int i = 0; i < 4; i++) {
        types[i] = random_ds4_type(names[i]);
        if (types[i] == GGML_TYPE_COUNT) {
            fail("'" + names[i] + "' is not a tensor type of this build", 2);
        }
    }
    return {types[0], types[1], types[2], types[3]};
}

static bench_options parse(int argc, char ** argv) {
    bench_options o;
    std::map<std::string, uint32_t *> sizes = {
        {"--hidden", &o.shape.n_embd},    {"--vocab", &o.shape.n_vocab},
        {"--heads", &o.shape.n_head},     {"--head-size", &o.shape.head_size},
        {"--experts", &o.shape.n_expert}, {"--experts-used", &o.shape.n_expert_used},
        {"--ff", &o.shape.n_ff},          {"--hash-layers", &o.shape.n_hash_layer},
    };
    std::map<std::string, int *> counts = {
        {"--prompt", &o.n_prompt},       {"--decode", &o.n_decode}, {"--depth", &o.n_depth},
        {"--gpu-layers", &o.gpu_layers}, {"--rounds", &o.rounds},
    };
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        if (name == "--list" || name == "--serve") {
            o.mode = name;
            continue;
        }
        if (name == "--help" || i + 1 == argc) {
            fputs(USAGE, name == "--help" ? stdout : stderr);
            exit(name == "--help" ? 0 : 2);
        }
        const std::string value = argv[++i];
        if (sizes.count(name)) {
            *sizes[name] = number(value);
        } else if (counts.count(name)) {
            *counts[name] = number(value);
        } else if (name == "--threads") {
            o.threads = numbers(value);
        } else if (name == "--ratios") {
            o.shape.ratios = numbers(value);
        } else if (name == "--seed") {
            o.seed = number(value);
        } else if (name == "--arm" && value.find('=') != std::string::npos) {
            const size_t equals = value.find('=');
            o.arms.push_back({value.substr(0, equals), parse_types(value.substr(equals + 1))});
        } else {
            fail("'" + name + " " + value + "' is not understood", 2);
        }
    }
    if (o.arms.empty()) {
        for (const auto & [name, types] : DEFAULT_ARMS) {
            o.arms.push_back({name, parse_types(types)});
        }
    }
    return o;
}

static std::vector<bench_case> cases_of(const bench_options & o) {
    std::vector<bench_case> cases;
    for (const int n_threads : o.threads) {
        const std::string suffix = " threads=" + std::to_string(n_threads);
        cases.push_back({"decode n=" + std::to_string(o.n_decode) + suffix, true, n_threads});
        cases.push_back({"prompt n=" + std::to_string(o.n_prompt) + suffix, false, n_threads});
    }
    return cases;
}

static bench_arm load(const bench_options & o, const std::string & name, const random_ds4_types & types) {
    std::string error;
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers       = o.gpu_layers;
    bench_arm arm             = {name, llama_model_ptr(random_ds4_load(o.shape, types, o.seed, params, error)), {}};
    if (!arm.model) {
        fail("arm " + name + ": " + error, 1);
    }
    llama_context_params context = llama_context_default_params();
    context.n_ctx                = o.n_depth + o.n_decode + o.n_prompt;
    context.n_batch              = context.n_ctx;
    context.swa_full             = false; // as the server sets it
    arm.context                  = llama_context_ptr(llama_init_from_model(arm.model.get(), context));
    if (!arm.context) {
        fail("arm " + name + ": llama.cpp made no context, see its messages", 1);
    }
    fprintf(stderr, "arm %s: %.3f GB of weights\n", name.c_str(), llama_model_size(arm.model.get()) / 1e9);
    return arm;
}

static void run(llama_context * context, std::vector<llama_token> tokens) {
    if (llama_decode(context, llama_batch_get_one(tokens.data(), tokens.size())) != 0) {
        fail("llama_decode failed, see its messages", 1);
    }
    llama_synchronize(context);
}

// One measurement, in tokens a second. The tokens are the same each time.
static double measure(const bench_options & o, const bench_case & which, bench_arm & arm) {
    llama_context * context = arm.context.get();
    const int n             = which.decode ? o.n_decode : o.n_prompt;
    const auto tokens       = [&](int first, int count) {
        std::vector<llama_token> made(count);
        for (int i = 0; i < count; i++) {
            made[i] = (o.seed + first + i) * 2654435761u % o.shape.n_vocab;
        }
        return made;
    };
    llama_set_n_threads(context, which.n_threads, which.n_threads);
    llama_memory_clear(llama_get_memory(context), true);
    if (which.decode && o.n_depth > 0) {
        run(context, tokens(0, o.n_depth));
    }
    const auto start = std::chrono::steady_clock::now();
    if (which.decode) {
        for (int i = 0; i < n; i++) {
            run(context, tokens(o.n_depth + i, 1));
        }
    } else {
        run(context, tokens(0, n));
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    const float * logits = llama_get_logits_ith(context, -1);
    for (uint32_t i = 0; i < o.shape.n_vocab; i++) {
        if (!std::isfinite(logits[i])) {
            fail("arm " + arm.name + ": a logit is not finite, so the speed means nothing", 1);
        }
    }
    return n / seconds;
}

static void print(const bench_case & which, const std::string & arm, const double * value) {
    printf("{\"case\": \"%s\", \"arm\": \"%s\", ", which.name.c_str(), arm.c_str());
    if (value != nullptr) {
        printf("\"value\": %.6g, ", *value);
    }
    printf("\"unit\": \"tok/s\"}\n");
    fflush(stdout);
}

static void serve(const bench_options & o, const std::vector<bench_case> & cases, std::vector<bench_arm> & arms) {
    for (std::string line; std::getline(std::cin, line);) {
        bool answered = false;
        for (const bench_case & which : cases) {
            for (bench_arm & arm : arms) {
                if (line == which.name + "\t" + arm.name) {
                    const double value = measure(o, which, arm);
                    print(which, arm.name, &value);
                    answered = true;
                }
            }
        }
        if (!answered) {
            printf("{\"error\": \"no such case and arm\"}\n");
            fflush(stdout);
        }
    }
}

// Every case in turn, its arms forwards then backwards; the first pass warms up and prints nothing.
static void run_rounds(const bench_options & o, const std::vector<bench_case> & cases, std::vector<bench_arm> & arms) {
    for (int round = -1; round < o.rounds; round++) {
        for (const bench_case & which : cases) {
            for (size_t i = 0; i < 2 * arms.size(); i++) {
                bench_arm & arm    = arms[i < arms.size() ? i : 2 * arms.size() - 1 - i];
                const double value = measure(o, which, arm);
                if (round >= 0) {
                    print(which, arm.name, &value);
                }
            }
        }
    }
}

int main(int argc, char ** argv) {
    const bench_options o               = parse(argc, argv);
    const std::vector<bench_case> cases = cases_of(o);
    if (o.mode == "--list") {
        for (const bench_case & which : cases) {
            for (const auto & arm : o.arms) {
                print(which, arm.first, nullptr);
            }
        }
        return 0;
    }
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level >= GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_CONT) {
                fputs(text, stderr);
            }
        },
        nullptr);
    ggml_backend_load_all();
    std::vector<bench_arm> arms;
    for (const auto & [name, types] : o.arms) {
        arms.push_back(load(o, name, types));
    }
    o.mode == "--serve" ? serve(o, cases, arms) : run_rounds(o, cases, arms);
    return 0;
}
