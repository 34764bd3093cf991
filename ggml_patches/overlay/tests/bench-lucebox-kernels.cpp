// Weights a second of processor time of matrix products on one thread, ROCmFPX types and the upstream types of about
// their size. Contract: docs/benchmarks.md, native benchmark programs. A case is a shape:
//   decode k=K   one column, a matrix that stays in the last-level cache
//   stream k=K   one column, a matrix larger than it
//   prompt k=K   64 columns; a weight counts once for each column
// An arm is a type in the fastest of the buffer types that take it, tried at the first request; or of one of ours
//   NAME/packed  rows as in the file, through the back-end
//   NAME/scalar  the scalar dot product, nothing else
//   NAME/ENGINE  the band kernels of one engine (avx2, avx512, neon), nothing else

#include "../ggml/src/ggml-rocmfpx/dot.h"
#include "cpu-session.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <iostream>
#include <memory>

namespace {

constexpr double MIN_SECONDS   = 0.03; // of one measurement
constexpr double TRY_SECONDS   = 0.02; // of one layout when the fastest is looked for
constexpr int64_t CACHE_ROWS   = 1024;
constexpr int64_t PROMPT_ROWS  = 256;
constexpr int64_t STREAM_BYTES = 128 << 20;
constexpr int64_t SCALAR_ROWS  = 16;
constexpr size_t KEPT_ARMS     = 3; // a pair takes turns; more would fill memory

struct shape {
    std::string name;
    bool streams;
    int64_t k, columns;
};

const std::vector<shape> shapes = {
    {"decode k=4096", false, 4096, 1},  {"decode k=2048", false, 2048, 1}, {"prompt k=4096", false, 4096, 64},
    {"prompt k=2048", false, 2048, 64}, {"stream k=4096", true, 4096, 1},  {"stream k=2048", true, 2048, 1},
};

const ggml_type upstream[] = {GGML_TYPE_Q2_K,  GGML_TYPE_Q3_K, GGML_TYPE_MXFP4, GGML_TYPE_Q4_0,
                              GGML_TYPE_NVFP4, GGML_TYPE_Q6_K, GGML_TYPE_Q8_0};

// Processor time of this process, which is one thread: waiting for a busy machine does not count.
double now() {
    return (double) std::clock() / CLOCKS_PER_SEC;
}

// Something that can be run again and again; one pass multiplies `weights` weights (times columns).
struct runnable {
    std::function<void()> pass;
    double weights;
    std::string layout;

    double measure(double least_seconds) const {
        pass();
        int64_t passes       = 0;
        const double started = now();
        double seconds       = 0.0;
        while (seconds < least_seconds) {
            pass();
            passes++;
            seconds = now() - started;
        }
        return weights * (double) passes / seconds;
    }
};

int64_t rows_of(const shape & s, ggml_type type) {
    if (s.streams) {
        return STREAM_BYTES / (int64_t) ggml_row_size(type, s.k) / 64 * 64;
    }
    return s.columns > 1 ? PROMPT_ROWS : CACHE_ROWS;
}

// A few different rows over and over: speed does not depend on values.
std::vector<uint8_t> some_rows(ggml_type type, int64_t k, int64_t rows) {
    const int64_t distinct       = std::min<int64_t>(rows, 64);
    const std::vector<uint8_t> q = quantize(type, normal((size_t) (k * distinct), 0.05f), k);
    std::vector<uint8_t> all;
    for (int64_t r = 0; r < rows; r += distinct) {
        all.insert(all.end(), q.begin(), q.end());
    }
    all.resize((size_t) rows * ggml_row_size(type, k));
    return all;
}

// One product through the CPU back-end.
std::unique_ptr<runnable> graph_arm(const shape & s, ggml_type type, ggml_backend_buffer_type_t buffer) {
    auto work          = std::make_shared<session>(1);
    const int64_t rows = rows_of(s, type);
    ggml_tensor * w    = ggml_new_tensor_2d(work->weights, type, s.k, rows);
    ggml_tensor * a    = ggml_new_tensor_2d(work->rest, GGML_TYPE_F32, s.k, s.columns);
    ggml_tensor * y    = ggml_mul_mat(work->rest, w, a);
    work->place_weights(buffer);
    const bool plain = buffer == ggml_backend_cpu_buffer_type();
    if (work->buffers[0] == nullptr || (!plain && w->extra == nullptr) ||
        !ggml_backend_dev_supports_op(work->device, y)) {
        return nullptr;
    }
    work->place_rest();
    set(w, some_rows(type, s.k, rows));
    set(a, normal((size_t) (s.k * s.columns), 1.0f));
    ggml_cgraph * graph = ggml_new_graph(work->rest);
    ggml_build_forward_expand(graph, y);
    auto pass = [work, graph] { ggml_backend_graph_compute(work->backend, graph); };
    return std::make_unique<runnable>(
        runnable{pass, (double) (rows * s.k * s.columns), ggml_backend_buft_name(buffer)});
}

std::vector<ggml_backend_buffer_type_t> buffer_types() {
    std::vector<ggml_backend_buffer_type_t> types = {ggml_backend_cpu_buffer_type()};
    auto * dev                                    = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto get_extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(dev), "ggml_backend_dev_get_extra_bufts");
    for (auto * extra = get_extra(dev); extra && *extra; ++extra) {
        types.push_back(*extra);
    }
    return types;
}

std::unique_ptr<runnable> best_graph_arm(const shape & s, ggml_type type) {
    std::unique_ptr<runnable> best;
    double speed = 0.0;
    for (auto * buffer : buffer_types()) {
        auto one               = graph_arm(s, type, buffer);
        const double its_speed = one ? one->measure(TRY_SECONDS) : 0.0;
        if (its_speed > speed) {
            speed = its_speed;
            best  = std::move(one);
        }
    }
    return best;
}

std::vector<uint8_t> activations(const shape & s) {
    return quantize(GGML_TYPE_Q8_0, normal((size_t) (s.k * s.columns), 1.0f), s.k);
}

std::unique_ptr<runnable> scalar_arm(const shape & s, const format & f) {
    auto pass = [k = s.k, columns = s.columns, dot = f.dot, x = some_rows(f.type, s.k, SCALAR_ROWS),
                 y = activations(s)] {
        const size_t x_bytes = x.size() / SCALAR_ROWS;
        const size_t y_bytes = y.size() / (size_t) columns;
        volatile float sink;
        for (int64_t i = 0; i < SCALAR_ROWS * columns; ++i) {
            float result;
            dot((int) k, &result, 0, &x[(size_t) (i / columns) * x_bytes], 0, &y[(size_t) (i % columns) * y_bytes], 0,
                1);
            sink = result;
        }
        (void) sink;
    };
    return std::make_unique<runnable>(runnable{pass, (double) (SCALAR_ROWS * s.k * s.columns), "rows"});
}

std::unique_ptr<runnable> engine_arm(const shape & s, const format & f, const rocmfpx_kernels & engine) {
    const int id       = rocmfpx_format_of(f.type);
    const int64_t rows = rows_of(s, f.type);
    const int64_t n    = s.k / QK_ROCMFPX;
    const int wide     = (int) std::min<int64_t>(s.columns, ROCMFPX_PANEL);
    const size_t band  = ROCMFPX_BAND * ggml_row_size(f.type, s.k);

    const std::vector<uint8_t> x = some_rows(f.type, s.k, rows);
    const std::vector<uint8_t> y = activations(s);
    std::vector<uint8_t> bands(x.size());
    std::vector<rocmfpx_act> panels((size_t) (n * s.columns));
    for (size_t at = 0; at < x.size(); at += band) {
        rocmfpx_pack_band(id, &x[at], n, &bands[at]);
    }
    for (int64_t c = 0; c < s.columns; ++c) {
        rocmfpx_pack_column(id, &y[(size_t) c * ggml_row_size(GGML_TYPE_Q8_0, s.k)], n,
                            &panels[(size_t) (c / wide * wide * n + c % wide)], wide);
    }
    auto pass = [=, tile = engine.tile[id], columns = s.columns] {
        float out[ROCMFPX_BAND * ROCMFPX_PANEL];
        for (size_t at = 0; at < bands.size(); at += band) {
            for (int64_t c = 0; c < columns; c += wide) {
                tile(n, &bands[at], &panels[(size_t) (c * n)], wide, wide, out);
            }
        }
    };
    return std::make_unique<runnable>(runnable{pass, (double) (rows * s.k * s.columns), "bands"});
}

using maker = std::function<std::unique_ptr<runnable>(const shape &)>;

// Every arm by name, in the order of --list.
std::vector<std::pair<std::string, maker>> arms() {
    std::vector<std::pair<std::string, maker>> all;
    for (ggml_type type : upstream) {
        all.push_back({ggml_type_name(type), [type](const shape & s) { return best_graph_arm(s, type); }});
    }
    for (const format & f : formats) {
        const std::string name = f.name;
        all.push_back({name, [&f](const shape & s) { return best_graph_arm(s, f.type); }});
        all.push_back(
            {name + "/packed", [&f](const shape & s) { return graph_arm(s, f.type, ggml_backend_cpu_buffer_type()); }});
        all.push_back({name + "/scalar", [&f](const shape & s) { return scalar_arm(s, f); }});
        for (int i = 0; rocmfpx_kernels_at(i) != nullptr; ++i) {
            const rocmfpx_kernels & engine = *rocmfpx_kernels_at(i);
            if (engine.tile != nullptr && engine.works()) {
                all.push_back(
                    {name + "/" + engine.name, [&f, &engine](const shape & s) { return engine_arm(s, f, engine); }});
            }
        }
    }
    return all;
}

// Arms that were asked for last, ready to run.
class bench {
  public:
    // The answer to "case<TAB>arm".
    std::string answer(const std::string & request) {
        const size_t tab = request.find('\t');
        if (tab == std::string::npos) {
            return error("not case<TAB>arm: " + request);
        }
        const std::string case_name = request.substr(0, tab);
        const std::string arm_name  = request.substr(tab + 1);
        runnable * arm              = find(case_name, arm_name);
        if (arm == nullptr) {
            return error("no arm '" + arm_name + "' in case '" + case_name + "'");
        }
        char value[40];
        std::snprintf(value, sizeof(value), "%.6g", arm->measure(MIN_SECONDS));
        return line(case_name, arm_name,
                    ", \"value\": " + std::string(value) + ", \"layout\": \"" + arm->layout + "\"");
    }

    static std::string line(const std::string & case_name, const std::string & arm_name, const std::string & more) {
        return "{\"case\": \"" + case_name + "\", \"arm\": \"" + arm_name + "\", \"unit\": \"weights/s\"" + more + "}";
    }

  private:
    static std::string error(const std::string & why) {
        std::string safe = why;
        std::replace_if(safe.begin(), safe.end(), [](unsigned char c) { return c < 32 || c == '"' || c == '\\'; }, '?');
        return "{\"error\": \"" + safe + "\"}";
    }

    runnable * find(const std::string & case_name, const std::string & arm_name) {
        const std::string key = case_name + "\t" + arm_name;
        auto at = std::find_if(kept.begin(), kept.end(), [&key](const auto & one) { return one.first == key; });
        if (at == kept.end()) {
            auto made = make(case_name, arm_name);
            if (made == nullptr) {
                return nullptr;
            }
            if (kept.size() == KEPT_ARMS) {
                kept.pop_back();
            }
            kept.insert(kept.begin(), {key, std::move(made)});
        } else {
            std::rotate(kept.begin(), at, at + 1);
        }
        return kept.front().second.get();
    }

    static std::unique_ptr<runnable> make(const std::string & case_name, const std::string & arm_name) {
        for (const shape & s : shapes) {
            for (const auto & arm : arms()) {
                if (s.name == case_name && arm.first == arm_name) {
                    return arm.second(s);
                }
            }
        }
        return nullptr;
    }

    std::vector<std::pair<std::string, std::unique_ptr<runnable>>> kept;
};

} // namespace

int main(int argc, char ** argv) {
    const std::string mode = argc == 2 ? argv[1] : "";
    if (argc > 2 || (argc == 2 && mode != "--list" && mode != "--serve")) {
        std::cerr << "usage: " << argv[0] << " [--list | --serve]\n";
        return 2;
    }
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr); // one line a repacked tensor
    bench measure;
    if (mode == "--serve") {
        for (std::string request; std::getline(std::cin, request);) {
            std::cout << measure.answer(request) << std::endl;
        }
        return 0;
    }
    for (const shape & s : shapes) {
        for (const auto & arm : arms()) {
            std::cout << (mode == "--list" ? bench::line(s.name, arm.first, "")
                                           : measure.answer(s.name + "\t" + arm.first))
                      << std::endl;
        }
    }
    return 0;
}
