// Products of ROCmFPX weights on the GPU: against the CPU by normalised squared error, and each column of a product
// of n columns against the product of that column alone bit for bit, with and without experts, plain and fused with
// the GLU that follows.
//
//   test-lucebox-cuda-ops [--small] [TYPE]
//
// --small: a few cases for each kernel, to run under a sanitizer.

#include "gpu-session.h"

#include <algorithm>

namespace {

// Both sides quantise activations to 8 bits, the CPU with a scale in half precision: 1e-5 to 1e-4 apart.
constexpr double MAX_NMSE = 5e-4;

std::string text(ggml_type type, int64_t k, int64_t rows, int64_t columns, const char * more = "") {
    return std::string(ggml_type_name(type)) + " k=" + std::to_string(k) + " rows=" + std::to_string(rows) +
           " columns=" + std::to_string(columns) + " " + more;
}

op_builder product(ggml_type type, int64_t k, int64_t rows, int64_t columns, int64_t planes = 1, int64_t share = 1) {
    return [=](ggml_context * ctx) {
        ggml_tensor * w = ggml_new_tensor_3d(ctx, type, k, rows, planes);
        ggml_tensor * x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, k, columns, planes * share);
        return op_graph{ggml_mul_mat(ctx, w, x), {w, x}};
    };
}

void test_products(comparison & c, ggml_type type) {
    for (int64_t k : {32, 96, 256, 512, 1024, 2048, 2080, 4096, 7168}) {
        for (int64_t rows : {1, 17, 64, 128, 130}) {
            const byte_vector w = random_weights(type, k, rows);
            for (int64_t columns : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 64, 128, 512}) {
                if (columns >= 128 && k > 2080 && rows != 130) {
                    continue; // the same code, at the CPU's expense
                }
                c.close(product(type, k, rows, columns), {w, as_bytes(normal(k * columns, 1.0f))}, MAX_NMSE,
                        text(type, k, rows, columns));
            }
        }
    }
    for (int64_t columns : {1, 5, 40}) {
        c.close(product(type, 160, 48, columns, 3, 2),
                {random_weights(type, 160, 48 * 3), as_bytes(normal(160 * columns * 6, 1.0f))}, MAX_NMSE,
                text(type, 160, 48, columns, "planes"));
    }
    c.report(std::string("mul_mat ") + ggml_type_name(type));
}

// Every byte pattern, scales that are no valid byte among them: those count as 0 on both sides.
void test_random_bytes(comparison & c, ggml_type type) {
    const int64_t rows = 40;
    for (int64_t k : {288, 2048}) {
        byte_vector noise(ggml_row_size(type, k) * rows);
        for (uint8_t & b : noise) {
            b = (uint8_t) rng();
        }
        for (int64_t columns : {1, 6, 32}) {
            c.close(product(type, k, rows, columns), {noise, as_bytes(normal(k * columns, 1.0f))}, MAX_NMSE,
                    text(type, k, rows, columns, "random bytes"));
        }
    }
}

// Activations with gaps between rows, weights that are some rows of a larger tensor.
void test_views(comparison & c, ggml_type type) {
    const int64_t k = 288, rows = 40;
    for (int64_t columns : {1, 4, 8, 9, 64}) {
        const auto build = [=](ggml_context * ctx) {
            ggml_tensor * w = ggml_new_tensor_2d(ctx, type, k, rows);
            ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, k + 64, columns);
            ggml_tensor * v = ggml_view_2d(ctx, w, k, rows / 2, w->nb[1], 5 * w->nb[1]);
            return op_graph{ggml_mul_mat(ctx, v, ggml_view_2d(ctx, x, k, columns, x->nb[1], 32 * 4)), {w, x}};
        };
        c.close(build, {random_weights(type, k, rows), as_bytes(normal((k + 64) * columns, 1.0f))}, MAX_NMSE,
                text(type, k, rows, columns, "views"));
        const auto permuted = [=](ggml_context * ctx) {
            ggml_tensor * w = ggml_new_tensor_3d(ctx, type, k, rows, 2);
            ggml_tensor * x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, k, 2, columns);
            return op_graph{ggml_mul_mat(ctx, w, ggml_permute(ctx, x, 0, 2, 1, 3)), {w, x}};
        };
        c.close(permuted, {random_weights(type, k, rows * 2), as_bytes(normal(k * 2 * columns, 1.0f))}, MAX_NMSE,
                text(type, k, rows, columns, "permuted"));
    }
    test_random_bytes(c, type);
    c.report(std::string("mul_mat of views and random bytes ") + ggml_type_name(type));
}

std::vector<int32_t> random_ids(int64_t experts, int64_t used, int64_t tokens) {
    std::vector<int32_t> ids, order(experts);
    for (int64_t e = 0; e < experts; ++e) {
        order[e] = (int32_t) e;
    }
    for (int64_t t = 0; t < tokens; ++t) {
        std::shuffle(order.begin(), order.end(), rng);
        ids.insert(ids.end(), order.begin(), order.begin() + used);
    }
    return ids;
}

constexpr int64_t EXPERTS = 16, USED = 6;

op_builder expert_product(ggml_type type, int64_t k, int64_t rows, int64_t tokens, bool same_input) {
    return [=](ggml_context * ctx) {
        ggml_tensor * w = ggml_new_tensor_3d(ctx, type, k, rows, EXPERTS);
        ggml_tensor * x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, k, same_input ? 1 : USED, tokens);
        ggml_tensor * i = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, USED, tokens);
        return op_graph{ggml_mul_mat_id(ctx, w, x, i), {w, x, i}};
    };
}

void test_experts(comparison & c, ggml_type type) {
    for (int64_t k : {96, 256, 2048}) {
        for (int64_t rows : {64, 65, 128}) {
            const byte_vector w = random_weights(type, k, rows * EXPERTS);
            for (int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 32, 33, 64}) {
                for (bool same_input : {true, false}) {
                    const int64_t inputs = (same_input ? 1 : USED) * tokens;
                    c.close(expert_product(type, k, rows, tokens, same_input),
                            {w, as_bytes(normal(k * inputs, 1.0f)), as_bytes(random_ids(EXPERTS, USED, tokens))},
                            MAX_NMSE, text(type, k, rows, tokens, same_input ? "experts" : "experts, own inputs"));
                }
            }
        }
    }
    c.report(std::string("mul_mat_id ") + ggml_type_name(type));
}

byte_vector part(const byte_vector & x, size_t n_parts, size_t i) {
    const size_t size = x.size() / n_parts;
    return byte_vector(x.begin() + i * size, x.begin() + (i + 1) * size);
}

// Speculation rests on it: a column does not depend on the others.
void test_columns(comparison & c, ggml_type type) {
    for (int64_t k : {96, 512, 2048, 4096, 7168}) {
        for (int64_t rows : {17, 64, 256}) {
            const byte_vector w = random_weights(type, k, rows);
            for (int64_t columns : {2, 3, 4, 5, 6, 7, 8}) {
                const byte_vector x   = as_bytes(normal(k * columns, 1.0f));
                const byte_vector all = c.on_gpu(product(type, k, rows, columns), {w, x}, "columns");
                for (int64_t i = 0; i < columns && !all.empty(); ++i) {
                    c.equal_to(product(type, k, rows, 1), {w, part(x, columns, i)}, part(all, columns, i),
                               text(type, k, rows, columns, "a column alone"));
                }
            }
        }
    }
    for (int64_t k : {96, 2048, 4096}) {
        const int64_t rows  = 80;
        const byte_vector w = random_weights(type, k, rows * EXPERTS);
        for (int64_t tokens : {2, 3, 4, 6, 8}) {
            for (bool same_input : {true, false}) {
                const byte_vector x   = as_bytes(normal(k * tokens * (same_input ? 1 : USED), 1.0f));
                const byte_vector ids = as_bytes(random_ids(EXPERTS, USED, tokens));
                const auto build      = expert_product(type, k, rows, tokens, same_input);
                const byte_vector all = c.on_gpu(build, {w, x, ids}, "tokens");
                for (int64_t i = 0; i < tokens && !all.empty(); ++i) {
                    c.equal_to(expert_product(type, k, rows, 1, same_input),
                               {w, part(x, tokens, i), part(ids, tokens, i)}, part(all, tokens, i),
                               text(type, k, rows, tokens, "a token alone"));
                }
            }
        }
    }
    c.report(std::string("a column in n and alone ") + ggml_type_name(type));
}

enum class activation { swiglu, clamped, geglu, oai };

ggml_tensor * glu(ggml_context * ctx, activation kind, ggml_tensor * gate, ggml_tensor * up) {
    switch (kind) {
        case activation::swiglu:
            return ggml_swiglu_split(ctx, gate, up);
        case activation::clamped: // low enough that most values meet it
            return ggml_swiglu_clamp(ctx, gate, up, 0.5f);
        case activation::geglu:
            return ggml_geglu_split(ctx, gate, up);
        default:
            return ggml_swiglu_oai(ctx, gate, up, 1.702f, 7.0f);
    }
}

// Gate, up and GLU in one launch, of one column or of experts for a few tokens, with and without bias.
op_builder gated(ggml_type type, int64_t k, int64_t rows, int64_t tokens, bool experts, bool bias, activation kind) {
    return [=](ggml_context * ctx) {
        const int64_t planes = experts ? EXPERTS : 1;
        ggml_tensor * g      = ggml_new_tensor_3d(ctx, type, k, rows, planes);
        ggml_tensor * u      = ggml_new_tensor_3d(ctx, type, k, rows, planes);
        ggml_tensor * x      = experts ? ggml_new_tensor_3d(ctx, GGML_TYPE_F32, k, 1, tokens)
                                       : ggml_new_tensor_2d(ctx, GGML_TYPE_F32, k, tokens);
        ggml_tensor * i      = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, USED, tokens);
        ggml_tensor * b      = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, rows, planes);
        ggml_tensor * gate   = experts ? ggml_mul_mat_id(ctx, g, x, i) : ggml_mul_mat(ctx, g, x);
        ggml_tensor * up     = experts ? ggml_mul_mat_id(ctx, u, x, i) : ggml_mul_mat(ctx, u, x);
        if (bias) {
            gate = experts ? ggml_add_id(ctx, gate, b, i) : ggml_add(ctx, gate, b);
            up   = experts ? ggml_add_id(ctx, up, b, i) : ggml_add(ctx, up, b);
        }
        return op_graph{glu(ctx, kind, gate, up), {g, u, x, i, b}};
    };
}

void test_gated(comparison & c, ggml_type type) {
    const char * names[] = {"swiglu", "clamped swiglu", "geglu", "oai"};
    const int64_t rows   = 48;
    for (int64_t k : {96, 256, 2048, 4096}) {
        for (bool experts : {false, true}) {
            const int64_t planes = experts ? EXPERTS : 1;
            const byte_vector g  = random_weights(type, k, rows * planes);
            const byte_vector u  = random_weights(type, k, rows * planes);
            for (int64_t tokens : {1, 2, 3, 4, 6, 8, 12}) {
                const byte_vector x   = as_bytes(normal(k * tokens, 1.0f));
                const byte_vector ids = as_bytes(random_ids(EXPERTS, USED, tokens));
                const byte_vector b   = as_bytes(normal(rows * planes, 0.5f));
                for (int kind = 0; kind < 4; ++kind) {
                    for (bool bias : {false, true}) {
                        c.close(gated(type, k, rows, tokens, experts, bias, (activation) kind), {g, u, x, ids, b},
                                MAX_NMSE,
                                text(type, k, rows, tokens, names[kind]) + (experts ? " experts" : "") +
                                    (bias ? " bias" : ""));
                    }
                }
            }
        }
    }
    c.report(std::string("gate, up and GLU ") + ggml_type_name(type));
}

// Routed and shared expert behind each other, which the back-end may run as one launch.
op_builder routed_and_shared(ggml_type type, int64_t k, int64_t rows, int64_t tokens, activation kind) {
    return [=](ggml_context * ctx) {
        ggml_tensor * w[4]; // routed gate and up, shared gate and up
        for (int n = 0; n < 4; ++n) {
            w[n] = ggml_new_tensor_3d(ctx, type, k, rows, n < 2 ? EXPERTS : 1);
        }
        ggml_tensor * x      = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, k, tokens);
        ggml_tensor * i      = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, USED, tokens);
        ggml_tensor * row    = ggml_reshape_3d(ctx, x, k, 1, tokens);
        ggml_tensor * routed = glu(ctx, kind, ggml_mul_mat_id(ctx, w[0], row, i), ggml_mul_mat_id(ctx, w[1], row, i));
        ggml_tensor * shared = glu(ctx, kind, ggml_mul_mat(ctx, w[2], x), ggml_mul_mat(ctx, w[3], x));
        return op_graph{routed, {w[0], w[1], w[2], w[3], x, i}, {shared}};
    };
}

void test_shared(comparison & c, ggml_type type) {
    const int64_t rows = 64;
    for (int64_t k : {256, 4096}) {
        std::vector<byte_vector> data;
        for (int64_t planes : {EXPERTS, EXPERTS, (int64_t) 1, (int64_t) 1}) {
            data.push_back(random_weights(type, k, rows * planes));
        }
        data.resize(6);
        for (int64_t tokens : {1, 2, 4, 8, 20}) {
            data[4] = as_bytes(normal(k * tokens, 1.0f));
            data[5] = as_bytes(random_ids(EXPERTS, USED, tokens));
            for (activation kind : {activation::swiglu, activation::clamped}) {
                c.close(routed_and_shared(type, k, rows, tokens, kind), data, MAX_NMSE,
                        text(type, k, rows, tokens, "routed and shared"));
            }
        }
    }
    c.report(std::string("routed and shared experts ") + ggml_type_name(type));
}

byte_vector repeated(const byte_vector & part, size_t size) {
    byte_vector all;
    while (all.size() < size) {
        all.insert(all.end(), part.begin(), part.begin() + std::min(part.size(), size - all.size()));
    }
    return all;
}

struct shape {
    int64_t k, rows, columns;
};

// Rows at any address, rings of each fixed K and of any, many rows, several columns, MMQ with and without a full tile.
constexpr shape small_shapes[] = {
    {96, 17, 1},   {288, 17, 4},  {512, 65, 1},   {512, 65, 2},   {512, 65, 8},    {1024, 65, 1},
    {2048, 65, 1}, {2048, 65, 5}, {2048, 130, 9}, {4096, 130, 1}, {2048, 8450, 1}, {288, 130, 33},
};

void test_small(comparison & c, ggml_type type) {
    for (const shape & s : small_shapes) {
        const byte_vector some = random_weights(type, s.k, std::min<int64_t>(s.rows, 130));
        c.close(product(type, s.k, s.rows, s.columns),
                {repeated(some, ggml_row_size(type, s.k) * s.rows), as_bytes(normal(s.k * s.columns, 1.0f))}, MAX_NMSE,
                text(type, s.k, s.rows, s.columns, "small"));
    }
    test_random_bytes(c, type);
    const int64_t rows = 33;
    for (int64_t k : {96, 2048, 4096}) {
        const byte_vector w = repeated(random_weights(type, k, rows), ggml_row_size(type, k) * rows * EXPERTS);
        for (int64_t tokens : {1, 4, 12}) {
            const byte_vector x   = as_bytes(normal(k * tokens, 1.0f));
            const byte_vector ids = as_bytes(random_ids(EXPERTS, USED, tokens));
            const byte_vector b   = as_bytes(normal(rows * EXPERTS, 0.5f));
            c.close(expert_product(type, k, rows, tokens, true), {w, x, ids}, MAX_NMSE,
                    text(type, k, rows, tokens, "small, experts"));
            c.close(gated(type, k, rows, tokens, true, false, activation::clamped), {w, w, x, ids, b}, MAX_NMSE,
                    text(type, k, rows, tokens, "small, gated experts"));
        }
        const byte_vector one = part(w, EXPERTS, 0);
        for (int64_t tokens : {1, 4}) {
            c.close(gated(type, k, rows, tokens, false, tokens == 1, activation::swiglu),
                    {one, one, as_bytes(normal(k * tokens, 1.0f)), {}, as_bytes(normal(rows, 0.5f))}, MAX_NMSE,
                    text(type, k, rows, tokens, "small, gated"));
            c.close(routed_and_shared(type, k, rows, tokens, activation::clamped),
                    {w, w, one, one, as_bytes(normal(k * tokens, 1.0f)), as_bytes(random_ids(EXPERTS, USED, tokens))},
                    MAX_NMSE, text(type, k, rows, tokens, "small, routed and shared"));
        }
    }
    c.report(std::string("small cases ") + ggml_type_name(type));
}

} // namespace

int main(int argc, char ** argv) {
    const bool small  = argc > 1 && std::string(argv[1]) == "--small";
    const char * only = argc > (small ? 2 : 1) ? argv[argc - 1] : nullptr;
    comparison c;
    for (ggml_type type : our_types) {
        if (only && std::string(only) != ggml_type_name(type)) {
            continue;
        }
        if (small) {
            test_small(c, type);
            continue;
        }
        test_products(c, type);
        test_views(c, type);
        test_experts(c, type);
        test_columns(c, type);
        test_gated(c, type);
        test_shared(c, type);
    }
    return c.finish();
}
