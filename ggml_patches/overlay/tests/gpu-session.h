#pragma once

// Owns: one graph on the first GPU and the same graph on the CPU, for tests that compare the two, and their report.
// Without a GPU the CPU takes both sides, which proves the harness and nothing else.

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml-rocmfpx.h"
#include "ggml.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using byte_vector = std::vector<uint8_t>;

inline std::mt19937 rng(7);

#define ADD_TYPE(id, suffix, stem, text, bytes) GGML_TYPE_##suffix,
inline const ggml_type our_types[] = {ROCMFPX_TYPES(ADD_TYPE)};

template <typename T> byte_vector as_bytes(const std::vector<T> & x) {
    const uint8_t * p = (const uint8_t *) x.data();
    return byte_vector(p, p + x.size() * sizeof(T));
}

inline std::vector<float> normal(size_t n, float sigma) {
    std::normal_distribution<float> distribution(0.0f, sigma);
    std::vector<float> x(n);
    for (float & v : x) {
        v = distribution(rng);
    }
    return x;
}

inline byte_vector quantized(ggml_type type, const std::vector<float> & x, int64_t k) {
    byte_vector q(ggml_row_size(type, k) * (x.size() / k));
    ggml_quantize_chunk(type, x.data(), q.data(), 0, x.size() / k, k, nullptr);
    return q;
}

inline byte_vector random_weights(ggml_type type, int64_t k, int64_t rows) {
    return quantized(type, normal(k * rows, 0.05f), k);
}

// A graph of one result: its leaves are filled in the order of `data`.
struct op_graph {
    ggml_tensor * out = nullptr;
    std::vector<ggml_tensor *> leaves;
    std::vector<ggml_tensor *> more = {}; // further results, in the graph behind `out`
};
using op_builder = std::function<op_graph(ggml_context *)>;

struct op_result {
    bool supported = false;
    byte_vector bytes; // of the results, one behind the other
};

inline void append_result(const ggml_tensor * t, byte_vector & bytes) {
    const size_t at = bytes.size();
    bytes.resize(at + ggml_nbytes(t));
    ggml_backend_tensor_get(t, bytes.data() + at, 0, ggml_nbytes(t));
}

inline op_result run_op(ggml_backend_t backend, const op_builder & build, const std::vector<byte_vector> & data) {
    ggml_context_ptr ctx{ggml_init({1 << 20, nullptr, /*.no_alloc =*/true})};
    const op_graph g = build(ctx.get());
    op_result result;
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, g.out);
    for (ggml_tensor * t : g.more) {
        ggml_build_forward_expand(graph, t);
    }
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        if (!ggml_backend_supports_op(backend, ggml_graph_node(graph, i))) {
            return result;
        }
    }
    result.supported = true;
    ggml_backend_buffer_ptr buffer{ggml_backend_alloc_ctx_tensors(ctx.get(), backend)};
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (size_t i = 0; i < g.leaves.size(); ++i) {
        ggml_backend_tensor_set(g.leaves[i], data[i].data(), 0, data[i].size());
    }
    if (ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS) {
        append_result(g.out, result.bytes);
        for (const ggml_tensor * t : g.more) {
            append_result(t, result.bytes);
        }
    }
    return result;
}

// Normalised squared error of floats; infinite where one side only is finite or sizes differ.
inline double nmse(const byte_vector & got, const byte_vector & want) {
    if (got.size() != want.size() || want.empty()) {
        return INFINITY;
    }
    double error = 0.0, energy = 0.0;
    for (size_t i = 0; i < want.size(); i += sizeof(float)) {
        float a, b;
        std::memcpy(&a, &got[i], sizeof(a));
        std::memcpy(&b, &want[i], sizeof(b));
        error += ((double) a - b) * ((double) a - b);
        energy += (double) b * b;
    }
    const double ratio = energy == 0.0 ? error : error / energy;
    return std::isfinite(ratio) ? ratio : INFINITY;
}

// The two sides and the cases of the class at hand.
struct comparison {
    ggml_backend_ptr cpu{ggml_backend_cpu_init()};
    ggml_backend_ptr gpu{ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_GPU, nullptr)};
    bool has_gpu = gpu != nullptr;
    int cases = 0, failed = 0, refused = 0, all = 0, all_failed = 0;
    double worst = 0.0;

    comparison() {
        const int threads = (int) std::thread::hardware_concurrency();
        ggml_backend_cpu_set_n_threads(cpu.get(), threads);
        if (!has_gpu) {
            gpu.reset(ggml_backend_cpu_init());
            ggml_backend_cpu_set_n_threads(gpu.get(), threads);
        }
        std::printf("%s against CPU\n", has_gpu ? ggml_backend_name(gpu.get()) : "CPU, for want of a GPU,");
    }

    void count(bool ok, const std::string & what) {
        ++cases;
        if (!ok) {
            ++failed;
            std::printf("FAIL %s\n", what.c_str());
        }
    }

    // One line for the cases since the last.
    void report(const std::string & name) {
        std::printf("%-44s %5d cases  %d failed  %d refused  worst nmse %.1e\n", name.c_str(), cases, failed, refused,
                    worst);
        std::fflush(stdout);
        all += cases;
        all_failed += failed;
        cases = failed = refused = 0;
        worst                    = 0.0;
    }

    int finish() const {
        std::printf("%d cases, %d failed\n", all, all_failed);
        return all_failed == 0 && all > 0 ? 0 : 1;
    }

    // The GPU's bytes, or none where it refuses; a refusal is a failure unless the CPU stands in for a GPU.
    byte_vector on_gpu(const op_builder & build, const std::vector<byte_vector> & data, const std::string & what) {
        op_result got = run_op(gpu.get(), build, data);
        if (!got.supported) {
            ++refused;
            if (has_gpu) {
                count(false, what + ": refused");
            }
        }
        return std::move(got.bytes);
    }

    void close(const op_builder & build, const std::vector<byte_vector> & data, double limit,
               const std::string & what) {
        const byte_vector got = on_gpu(build, data, what);
        if (got.empty()) {
            return;
        }
        const double error = nmse(got, run_op(cpu.get(), build, data).bytes);
        worst              = std::max(worst, error);
        count(error <= limit, what + ": nmse " + std::to_string(error));
    }

    void equal(const op_builder & build, const std::vector<byte_vector> & data, const std::string & what) {
        equal_to(build, data, run_op(cpu.get(), build, data).bytes, what);
    }

    void equal_to(const op_builder & build, const std::vector<byte_vector> & data, const byte_vector & want,
                  const std::string & what) {
        const byte_vector got = on_gpu(build, data, what);
        if (got.empty()) {
            return;
        }
        size_t at = 0;
        while (at < std::min(got.size(), want.size()) && got[at] == want[at]) {
            ++at;
        }
        count(got == want, what + ": differs from byte " + std::to_string(at) + " of " + std::to_string(want.size()));
    }
};
