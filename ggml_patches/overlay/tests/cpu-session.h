#pragma once

// Owns: what tests of CPU ops share: random data, the reference encoder and decoder, a back-end with its tensors.

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-rocmfpx.h"

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

struct format {
    ggml_type type;
    const char * name;
    void (*dot)(int, float *, size_t, const void *, size_t, const void *, size_t, int);
};

#define ADD_FORMAT(id, suffix, stem, text, bytes) {GGML_TYPE_##suffix, text, ggml_vec_dot_##stem##_q8_0_generic},
inline const format formats[] = {ROCMFPX_TYPES(ADD_FORMAT)};

inline std::mt19937 rng(7);
inline int failures = 0;

inline void check(bool ok, const std::string & what) {
    if (!ok) {
        std::fprintf(stderr, "FAIL %s\n", what.c_str());
        failures++;
    }
}

inline std::vector<float> normal(size_t n, float sigma) {
    std::normal_distribution<float> distribution(0.0f, sigma);
    std::vector<float> x(n);
    for (auto & v : x) {
        v = distribution(rng);
    }
    return x;
}

inline std::vector<uint8_t> quantize(ggml_type type, const std::vector<float> & x, int64_t k) {
    std::vector<uint8_t> q(ggml_row_size(type, k) * (x.size() / k));
    ggml_quantize_chunk(type, x.data(), q.data(), 0, x.size() / k, k, nullptr);
    return q;
}

inline std::vector<float> decode(ggml_type type, const std::vector<uint8_t> & q) {
    std::vector<float> x(q.size() / ggml_type_size(type) * ggml_blck_size(type));
    ggml_get_type_traits(type)->to_float(q.data(), x.data(), (int64_t) x.size());
    return x;
}

// A back-end, one context of weights in a buffer type of choice and one of everything else.
struct session {
    ggml_backend_t backend           = ggml_backend_cpu_init();
    ggml_backend_dev_t device        = ggml_backend_get_device(backend);
    ggml_context * weights           = ggml_init({1 << 16, nullptr, true});
    ggml_context * rest              = ggml_init({1 << 20, nullptr, true});
    ggml_backend_buffer_t buffers[2] = {nullptr, nullptr};

    explicit session(int n_threads) { ggml_backend_cpu_set_n_threads(backend, n_threads); }

    ~session() {
        for (auto * buffer : buffers) {
            ggml_backend_buffer_free(buffer);
        }
        ggml_free(weights);
        ggml_free(rest);
        ggml_backend_free(backend);
    }

    void place_weights(ggml_backend_buffer_type_t type) {
        buffers[0] = ggml_backend_alloc_ctx_tensors_from_buft(weights, type);
    }

    void place_rest() { buffers[1] = ggml_backend_alloc_ctx_tensors(rest, backend); }

    void run(ggml_tensor * result) {
        ggml_cgraph * graph = ggml_new_graph(rest);
        ggml_build_forward_expand(graph, result);
        check(ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS, "graph");
    }
};

template <typename T> void set(ggml_tensor * t, const std::vector<T> & data) {
    ggml_backend_tensor_set(t, data.data(), 0, data.size() * sizeof(T));
}

template <typename T> std::vector<T> get(const ggml_tensor * t) {
    std::vector<T> data(ggml_nbytes(t) / sizeof(T));
    ggml_backend_tensor_get(t, data.data(), 0, ggml_nbytes(t));
    return data;
}

inline ggml_backend_buffer_type_t repacked_type() {
    auto * dev     = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto get_extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(dev), "ggml_backend_dev_get_extra_bufts");
    for (auto * type = get_extra(dev); type && *type; ++type) {
        if (std::strcmp(ggml_backend_buft_name(*type), "CPU_ROCMFPX") == 0) {
            return *type;
        }
    }
    return nullptr;
}
