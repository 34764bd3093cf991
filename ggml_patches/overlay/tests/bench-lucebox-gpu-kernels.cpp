// Microseconds a matrix product takes on the first GPU at the shapes of DeepSeek-V4-Flash, in a graph of many that
// walk over more weights than any cache holds. Contract: docs/benchmarks.md, native benchmark programs.
// A case is a shape and a number of columns (tokens); an arm is a type, or what bounds it:
//   TYPE/read        a kernel that reads the same bytes, launched early as the products are
//   TYPE/read-q8     the same behind a node that quantises activations: a product in ggml is these two nodes
//   TYPE/read-plain  the same as an ordinary node
// Built on the public API of ggml alone, so that the same source measures builds without our patches; types they do
// not have are not listed. A product is timed with the node that quantises its activations, nothing is subtracted.

#include "gpu-products.h"

#ifdef LUCEBOX_GPU_READ
#include "gpu-read.h"
#endif

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <list>

namespace {

const char * const type_names[] = {"q2_0_rocmfp2", "q3_0_rocmfpx", "q4_0_rocmfp4", "q4_0_rocmfp4_fast",
                                   "q6_0_rocmfpx", "q8_0_rocmfpx", "q2_K",         "q3_K",
                                   "q4_0",         "mxfp4",        "q6_K",         "q8_0"};

constexpr int CAPTURE_RUNS  = 3;  // the back-end captures the second of two equal runs
constexpr size_t KEPT_POOLS = 12; // all types: a pool takes longer to fill than to measure
constexpr size_t KEPT_ARMS  = 16; // of a case

bool captured = false; // the back-end said that it records a graph

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Something that can be run again and again.
struct runnable {
    std::function<void()> start, finish;
    size_t nodes;
    size_t read;
    bool in_graph = true;
    size_t batch  = 1; // runs that last long enough, as found the first time

    double microseconds() {
        start();
        finish();
        for (;; batch *= 2) {
            const double began = now();
            for (size_t i = 0; i < batch; ++i) {
                start();
            }
            finish();
            const double elapsed = now() - began;
            if (elapsed >= options.least_s * 0.7) {
                return elapsed * 1e6 / (double) (batch * nodes);
            }
        }
    }
};

std::unique_ptr<runnable> time_products(const shape & s, std::shared_ptr<const pool> p, const walk & w, int columns) {
    auto work = std::make_shared<products>(s, std::move(p), w, columns);
    if (!work->supported()) {
        throw std::runtime_error("the device does not multiply this type");
    }
    captured = false;
    for (int i = 0; i < CAPTURE_RUNS; ++i) {
        work->start();
    }
    products::finish();
    return std::make_unique<runnable>(
        runnable{[work] { work->start(); }, [] { products::finish(); }, w.nodes, w.read, captured});
}

#ifdef LUCEBOX_GPU_READ
const std::vector<std::pair<std::string, read_form>> forms = {
    {"/read", read_form::early}, {"/read-q8", read_form::quantised}, {"/read-plain", read_form::plain}};

std::unique_ptr<runnable> time_reads(const shape & s, std::shared_ptr<const pool> p, const walk & w, int columns,
                                     read_form form) {
    std::vector<const void *> starts;
    const size_t last = p->bytes - w.read;
    for (size_t i = 0; i < w.nodes; ++i) {
        const size_t at = s.experts ? (last == 0 ? 0 : i * w.read % last) : w.offset(i);
        starts.push_back(p->address(at / 256 * 256));
    }
    const int64_t inputs = s.own_input ? (s.experts ? EXPERTS_USED : s.channels) : 1;
    auto work            = std::make_shared<gpu_read>(starts, w.read, form, (size_t) (s.k * columns * inputs));
    auto hold            = std::move(p); // weights live as long as the kernels that read them
    return std::make_unique<runnable>(
        runnable{[work, hold] { work->launch(); }, [work] { work->wait(); }, w.nodes, w.read});
}
#endif

// What was measured last, ready to run, and the weights of the last few types.
class bench {
  public:
    std::string answer(const std::string & request) {
        const size_t tab = request.find('\t');
        if (tab == std::string::npos) {
            return error("not case<TAB>arm: " + request);
        }
        const std::string case_name = request.substr(0, tab);
        const std::string arm       = request.substr(tab + 1);
        try {
            runnable & one = find(case_name, arm);
            char value[40], layout[80];
            std::snprintf(value, sizeof(value), "%.6g", one.microseconds());
            std::snprintf(layout, sizeof(layout), "%.1f MB%s", (double) one.read / 1e6,
                          one.in_graph || options.cpu ? "" : ", no CUDA graph");
            return line(case_name, arm, ", \"value\": " + std::string(value) + ", \"layout\": \"" + layout + "\"");
        } catch (const std::exception & bad) {
            return error(case_name + ", " + arm + ": " + bad.what());
        }
    }

    static std::string line(const std::string & case_name, const std::string & arm, const std::string & more) {
        return "{\"case\": \"" + case_name + "\", \"arm\": \"" + arm + "\", \"unit\": \"us\"" + more + "}";
    }

    // Every case and arm there is, in order.
    static void each(const std::function<void(const std::string &, const std::string &)> & visit) {
        for (const shape & s : shapes) {
            for (int columns : s.columns) {
                for (const char * name : type_names) {
                    if (find_type(name) < 0) {
                        continue;
                    }
                    visit(case_of(s, columns), name);
#ifdef LUCEBOX_GPU_READ
                    for (const auto & form : forms) {
                        visit(case_of(s, columns), name + form.first);
                    }
#endif
                }
            }
        }
    }

  private:
    static std::string case_of(const shape & s, int columns) {
        return std::string(s.name) + " q=" + std::to_string(columns);
    }

    static std::string error(std::string why) {
        std::replace_if(why.begin(), why.end(), [](unsigned char c) { return c < 32 || c == '"' || c == '\\'; }, '?');
        return "{\"error\": \"" + why + "\"}";
    }

    runnable & find(const std::string & case_name, const std::string & arm) {
        const std::string key = case_name + "\t" + arm;
        for (auto at = arms.begin(); at != arms.end(); ++at) {
            if (at->first == key) {
                arms.splice(arms.begin(), arms, at);
                return *arms.front().second;
            }
        }
        auto made = make(case_name, arm);
        if (arms.size() == KEPT_ARMS) {
            arms.pop_back();
        }
        arms.emplace_front(key, std::move(made));
        return *arms.front().second;
    }

    std::unique_ptr<runnable> make(const std::string & case_name, const std::string & arm) {
        const size_t slash     = arm.find('/');
        const std::string name = arm.substr(0, slash);
        const int type         = find_type(name);
        for (const shape & s : shapes) {
            for (int columns : s.columns) {
                if (type < 0 || case_of(s, columns) != case_name) {
                    continue;
                }
                const walk w((s), (ggml_type) type, columns);
                if (slash == std::string::npos) {
                    return time_products(s, find_pool((ggml_type) type, w.pool_bytes()), w, columns);
                }
#ifdef LUCEBOX_GPU_READ
                for (const auto & form : forms) {
                    if (arm.substr(slash) == form.first) {
                        return time_reads(s, find_pool((ggml_type) type, w.pool_bytes()), w, columns, form.second);
                    }
                }
#endif
            }
        }
        throw std::runtime_error("not one of --list");
    }

    std::shared_ptr<const pool> find_pool(ggml_type type, size_t bytes) {
        for (auto at = pools.begin(); at != pools.end(); ++at) {
            if ((*at)->type == type && (*at)->bytes >= bytes) {
                pools.splice(pools.begin(), pools, at);
                return pools.front();
            }
        }
        pools.remove_if([type](const auto & p) { return p->type == type; });
        if (pools.size() == KEPT_POOLS) {
            pools.pop_back();
        }
        pools.push_front(std::make_shared<const pool>(type, bytes));
        return pools.front();
    }

    std::list<std::pair<std::string, std::unique_ptr<runnable>>> arms;
    std::list<std::shared_ptr<const pool>> pools;
};

void watch_log(ggml_log_level, const char * text, void *) {
    captured = captured || std::strstr(text, "CUDA graph warmup complete") != nullptr;
}

} // namespace

int main(int argc, char ** argv) {
    std::string mode;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--cpu") { // a rehearsal: small matrices, small pools
            options.cpu         = true;
            options.pool_bytes  = (size_t) 4 << 20;
            options.row_divisor = 256;
            options.least_s     = 0.0002;
        } else if (mode.empty() && (word == "--list" || word == "--serve")) {
            mode = word;
        } else {
            std::cerr << "usage: " << argv[0] << " [--cpu] [--list | --serve]\n";
            return 2;
        }
    }
    ggml_log_set(watch_log, nullptr);
    ggml_backend_load_all();
    bench measure;
    if (mode == "--serve") {
        for (std::string request; std::getline(std::cin, request);) {
            std::cout << measure.answer(request) << std::endl;
        }
        return 0;
    }
    bench::each([&](const std::string & case_name, const std::string & arm) {
        std::cout << (mode == "--list" ? bench::line(case_name, arm, "") : measure.answer(case_name + "\t" + arm))
                  << std::endl;
    });
    return 0;
}
