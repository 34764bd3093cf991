#pragma once

// Owns: graphs of matrix products at the shapes of DeepSeek-V4-Flash whose weights are cold in every cache: each node
// has matrices of its own out of a pool that no cache holds. Uses the public API of ggml alone, see
// bench-lucebox-gpu-kernels.cpp.

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

constexpr int EXPERTS_USED = 6;
constexpr float GLU_LIMIT  = 10.0f;
constexpr int RING         = 4; // results overwrite each other after as many nodes
constexpr size_t MAX_NODES = 2500;

// n rows of k weights, `channels` such matrices side by side, or the experts of a layer (experts: of a pool).
// gated: a gate and an up matrix joined by the clamped SwiGLU. own_input: each channel has activations of its own.
struct shape {
    const char * name;
    int64_t k, n, channels;
    bool experts, gated, own_input;
    std::vector<int> columns;
};

inline const std::vector<int> decoding = {1, 2, 3, 4, 5, 6};
inline const std::vector<int> dense    = {1, 2, 3, 4, 5, 6, 512};
inline const std::vector<int> routed   = {1, 2, 3, 4, 5, 6, 17, 32, 64, 512};

// The compressor projections of CSA and HCA layers have the shapes of q_a and kv.
inline const std::vector<shape> shapes = {
    {"q_a", 4096, 1024, 1, false, false, false, dense},
    {"kv", 4096, 512, 1, false, false, false, dense},
    {"q_b", 1024, 32768, 1, false, false, false, dense},
    {"output_a", 4096, 1024, 8, false, false, true, dense},
    {"output_b", 8192, 4096, 1, false, false, false, dense},
    {"shared-gate+up", 4096, 2048, 1, false, true, false, dense},
    {"shared-down", 2048, 4096, 1, false, false, false, dense},
    {"indexer-q_b", 1024, 8192, 1, false, false, false, dense},
    {"indexer-compressor", 4096, 256, 1, false, false, false, dense},
    {"routed-gate+up", 4096, 2048, 1, true, true, false, routed},
    {"routed-down", 2048, 4096, 1, true, false, true, routed},
    {"lm_head", 4096, 129280, 1, false, false, false, decoding},
};

struct settings {
    bool cpu            = false;
    size_t pool_bytes   = (size_t) 640 << 20; // walked over before an address comes again
    int64_t row_divisor = 1;
    double least_s      = 0.004; // of one measurement
};

inline settings options;

inline ggml_backend_t backend() {
    static ggml_backend_t made =
        ggml_backend_init_by_type(options.cpu ? GGML_BACKEND_DEVICE_TYPE_CPU : GGML_BACKEND_DEVICE_TYPE_GPU, nullptr);
    if (made == nullptr) {
        throw std::runtime_error("no such device");
    }
    return made;
}

inline int find_type(const std::string & name) {
    for (int t = 0; t < GGML_TYPE_COUNT; ++t) {
        const char * known = ggml_type_name((ggml_type) t);
        if (known != nullptr && name == known) {
            return t;
        }
    }
    return -1;
}

using context = std::unique_ptr<ggml_context, decltype(&ggml_free)>;
using buffer  = std::unique_ptr<ggml_backend_buffer, decltype(&ggml_backend_buffer_free)>;

inline context make_context(size_t tensors) {
    const size_t size = ggml_tensor_overhead() * tensors + ggml_graph_overhead_custom(tensors, false);
    return context(ggml_init({size, nullptr, true}), ggml_free);
}

inline buffer allocate(size_t bytes) {
    ggml_backend_buffer_t made = ggml_backend_buft_alloc_buffer(ggml_backend_get_default_buffer_type(backend()), bytes);
    if (made == nullptr) {
        throw std::runtime_error("out of memory on the device");
    }
    return buffer(made, ggml_backend_buffer_free);
}

inline size_t round_up(size_t n, size_t step) {
    return (n + step - 1) / step * step;
}

// Weights of one type, as many bytes as asked for, all valid blocks.
struct pool {
    ggml_type type;
    size_t bytes;
    buffer memory;

    pool(ggml_type t, size_t at_least)
        : type(t), bytes(round_up(at_least, step(t))), memory(allocate(bytes + ((size_t) 1 << 20))) {
        ggml_backend_buffer_set_usage(memory.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        std::mt19937 rng(7);
        std::normal_distribution<float> normal(0.0f, 0.02f);
        std::vector<float> x(4096 * 16);
        std::generate(x.begin(), x.end(), [&] { return normal(rng); });
        std::vector<uint8_t> rows(ggml_row_size(type, 4096) * 16);
        ggml_quantize_chunk(type, x.data(), rows.data(), 0, 16, 4096, nullptr);
        std::vector<uint8_t> many;
        while (many.size() < std::min(bytes, (size_t) 16 << 20)) {
            many.insert(many.end(), rows.begin(), rows.end());
        }
        const context c   = make_context(4);
        ggml_tensor * all = ggml_new_tensor_1d(c.get(), GGML_TYPE_I8, (int64_t) bytes);
        place(all, 0);
        for (size_t at = 0; at < bytes; at += many.size()) {
            ggml_backend_tensor_set(all, many.data(), at, std::min(many.size(), bytes - at));
        }
    }

    // Matrices start where a block and an aligned address do.
    static size_t step(ggml_type t) { return ggml_type_size(t) * 256; }

    void place(ggml_tensor * tensor, size_t offset) const {
        ggml_backend_tensor_alloc(memory.get(), tensor, (char *) ggml_backend_buffer_get_base(memory.get()) + offset);
    }

    const void * address(size_t offset) const { return (char *) ggml_backend_buffer_get_base(memory.get()) + offset; }
};

// Where the nodes of a case find their weights.
struct walk {
    size_t matrix; // bytes from the first matrix to a second one beside it (gate, up)
    size_t beside; // matrices of a node: 2 with a gate
    size_t stride; // bytes from one node's weights to the next one's; with experts all nodes share the pool
    size_t read;   // bytes a node reads
    size_t nodes;  // of the graph
    size_t places; // before the walk starts again
    int64_t experts;

    walk(const shape & s, ggml_type type, int columns) {
        const int64_t rows = std::max<int64_t>(64, s.n / options.row_divisor);
        const size_t exact = ggml_row_size(type, s.k) * (size_t) (rows * s.channels);
        beside             = s.gated ? 2 : 1;
        experts = s.experts ? std::clamp<int64_t>((int64_t) (options.pool_bytes / (exact * beside)), 8, 256) : 1;
        matrix  = round_up(exact * (size_t) experts, pool::step(type));
        stride  = s.experts ? 0 : matrix * beside;
        const auto used = (size_t) std::min<int64_t>(experts, (int64_t) EXPERTS_USED * columns);
        read            = exact * beside * (s.experts ? used : 1);
        places          = s.experts ? 1 : std::max<size_t>(1, options.pool_bytes / stride);
        nodes           = std::clamp<size_t>((options.pool_bytes + read - 1) / read, 4, MAX_NODES);
        if (columns > 64) {
            nodes = std::min<size_t>(nodes, 24); // bound by arithmetic, and results are large
        }
    }

    size_t pool_bytes() const { return std::max(options.pool_bytes, stride == 0 ? matrix * beside : stride * places); }
    size_t offset(size_t node) const { return (node % places) * stride; }
};

// A graph of products, its activations and a ring of results.
class products {
  public:
    products(const shape & s, std::shared_ptr<const pool> p, const walk & w, int columns)
        : shape_(s), weights(std::move(p)), walk_(w), columns_(columns), meta(make_context(w.nodes * 8 + 16)) {
        x     = s.experts ? ggml_new_tensor_3d(ctx(), GGML_TYPE_F32, s.k, s.own_input ? EXPERTS_USED : 1, columns)
                          : ggml_new_tensor_3d(ctx(), GGML_TYPE_F32, s.k, columns, s.channels);
        graph = ggml_new_graph_custom(ctx(), w.nodes * 4 + 16, false);
        inputs.push_back(x);
        for (size_t i = 0; i < w.nodes; ++i) {
            add_node(i);
        }
        allocate_all();
    }

    bool supported() const {
        for (int i = 0; i < std::min(ggml_graph_n_nodes(graph), 3); ++i) {
            if (!ggml_backend_supports_op(backend(), ggml_graph_node(graph, i))) {
                return false;
            }
        }
        return true;
    }

    void start() {
        if (ggml_backend_graph_compute_async(backend(), graph) != GGML_STATUS_SUCCESS) {
            throw std::runtime_error("the graph failed");
        }
    }

    static void finish() { ggml_backend_synchronize(backend()); }

  private:
    ggml_context * ctx() const { return meta.get(); }

    ggml_tensor * new_matrix(size_t offset) {
        const int64_t rows = std::max<int64_t>(64, shape_.n / options.row_divisor);
        const int64_t side = shape_.experts ? walk_.experts : shape_.channels;
        ggml_tensor * w    = ggml_new_tensor_3d(ctx(), weights->type, shape_.k, rows, side);
        weights->place(w, offset);
        return w;
    }

    ggml_tensor * product(ggml_tensor * w, ggml_tensor * ids) {
        return shape_.experts ? ggml_mul_mat_id(ctx(), w, x, ids) : ggml_mul_mat(ctx(), w, x);
    }

    // The routed experts of one layer are one matrix for all nodes, so each node has its own choice of them.
    ggml_tensor * new_ids(size_t node) {
        ggml_tensor * ids = ggml_new_tensor_2d(ctx(), GGML_TYPE_I32, EXPERTS_USED, columns_);
        std::vector<int32_t> chosen;
        const int64_t first = (int64_t) node * EXPERTS_USED * columns_;
        for (int64_t i = 0; i < (int64_t) EXPERTS_USED * columns_; ++i) {
            chosen.push_back((int32_t) ((first + i) % walk_.experts));
        }
        inputs.push_back(ids);
        choices.push_back(chosen);
        return ids;
    }

    void add_node(size_t i) {
        const size_t at   = walk_.offset(i);
        ggml_tensor * ids = shape_.experts ? new_ids(i) : nullptr;
        std::vector<ggml_tensor *> made;
        if (shape_.gated) {
            if (gate == nullptr || !shape_.experts) {
                gate = new_matrix(at);
                up   = new_matrix(at + walk_.matrix);
            }
            ggml_tensor * u = product(up, ids);
            ggml_tensor * g = product(gate, ids);
            // the graph visits the gate first, as a model's does: ggml-cuda fuses the three in this order alone
            made = {u, g, ggml_swiglu_clamp(ctx(), g, u, GLU_LIMIT)};
        } else {
            if (up == nullptr || !shape_.experts) {
                up = new_matrix(at);
            }
            made = {product(up, ids)};
        }
        ggml_build_forward_expand(graph, made.back());
        results.push_back(made);
    }

    void allocate_all() {
        const size_t step = 256;
        size_t size       = 0;
        for (const ggml_tensor * t : inputs) {
            size += round_up(ggml_nbytes(t), step);
        }
        size_t slot = 0;
        for (const ggml_tensor * t : results[0]) {
            slot += round_up(ggml_nbytes(t), step);
        }
        memory    = allocate(size + slot * RING + step);
        char * at = (char *) ggml_backend_buffer_get_base(memory.get());
        for (ggml_tensor * t : inputs) {
            ggml_backend_tensor_alloc(memory.get(), t, at);
            at += round_up(ggml_nbytes(t), step);
        }
        for (size_t i = 0; i < results.size(); ++i) {
            char * place = at + (i % RING) * slot;
            for (ggml_tensor * t : results[i]) {
                ggml_backend_tensor_alloc(memory.get(), t, place);
                place += round_up(ggml_nbytes(t), step);
            }
        }
        std::mt19937 rng(8);
        std::normal_distribution<float> normal(0.0f, 1.0f);
        std::vector<float> values((size_t) ggml_nelements(x));
        std::generate(values.begin(), values.end(), [&] { return normal(rng); });
        ggml_backend_tensor_set(x, values.data(), 0, ggml_nbytes(x));
        for (size_t i = 0; i < choices.size(); ++i) {
            ggml_backend_tensor_set(inputs[i + 1], choices[i].data(), 0, ggml_nbytes(inputs[i + 1]));
        }
    }

    shape shape_;
    std::shared_ptr<const pool> weights;
    walk walk_;
    int columns_;
    context meta;
    buffer memory       = buffer(nullptr, ggml_backend_buffer_free);
    ggml_tensor * x     = nullptr;
    ggml_tensor * gate  = nullptr;
    ggml_tensor * up    = nullptr;
    ggml_cgraph * graph = nullptr;
    std::vector<ggml_tensor *> inputs; // activations, then the experts of each node
    std::vector<std::vector<int32_t>> choices;
    std::vector<std::vector<ggml_tensor *>> results;
};
