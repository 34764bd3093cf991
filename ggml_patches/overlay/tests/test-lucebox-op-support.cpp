// Owns: the CPU back-end's answers for the ROCmFPX types: shapes that an op has no code for are refused when asked,
// not in the op; and two ops that test-lucebox-cpu-ops leaves out, out_prod and the copy of a row view.

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml-rocmfpx.h"
#include "ggml.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

static const int64_t COLUMNS = 96, ROWS = 7, TOKENS = 3;

static int failures = 0;

static void check(bool ok, const std::string & what) {
    if (!ok) {
        fprintf(stderr, "FAILED: %s\n", what.c_str());
        failures++;
    }
}

static std::vector<float> wave(size_t n, float step) {
    std::vector<float> out(n);
    for (size_t i = 0; i < n; i++) {
        out[i] = sinf(step * (float) i);
    }
    return out;
}

struct session {
    ggml_context_ptr ctx{ggml_init({1 << 20, nullptr, /*.no_alloc =*/true})};
    ggml_backend_ptr backend{ggml_backend_cpu_init()};
    ggml_backend_buffer_ptr buffer;

    bool supports(const ggml_tensor * op) { return ggml_backend_supports_op(backend.get(), op); }
    void allocate() { buffer.reset(ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get())); }
    std::vector<uint8_t> compute(ggml_tensor * out) {
        ggml_cgraph * graph = ggml_new_graph(ctx.get());
        ggml_build_forward_expand(graph, out);
        check(ggml_backend_graph_compute(backend.get(), graph) == GGML_STATUS_SUCCESS, "compute");
        std::vector<uint8_t> result(ggml_nbytes(out));
        ggml_backend_tensor_get(out, result.data(), 0, result.size());
        return result;
    }
};

struct weights {
    std::vector<uint8_t> blocks;
    std::vector<float> values; // decoded

    explicit weights(ggml_type type) : blocks(ggml_row_size(type, COLUMNS) * ROWS), values(COLUMNS * ROWS) {
        const auto source = wave(values.size(), 0.7f);
        ggml_get_type_traits(type)->from_float_ref(source.data(), blocks.data(), (int64_t) source.size());
        ggml_get_type_traits(type)->to_float(blocks.data(), values.data(), (int64_t) values.size());
    }
};

static void test_refused(ggml_type type) {
    const std::string name = ggml_type_name(type);
    session s;
    ggml_context * ctx = s.ctx.get();
    ggml_tensor * w    = ggml_new_tensor_2d(ctx, type, COLUMNS, ROWS);
    ggml_tensor * flat = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, COLUMNS);
    ggml_tensor * half = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, COLUMNS, TOKENS);
    ggml_tensor * view = ggml_view_2d(ctx, w, COLUMNS, ROWS / 2, 2 * w->nb[1], 0);
    ggml_tensor * line = ggml_new_tensor_1d(ctx, type, COLUMNS * (ROWS / 2));
    check(!s.supports(ggml_add(ctx, w, flat)), name + ": add that repeats");
    check(!s.supports(ggml_mul_mat(ctx, w, half)), name + ": mul_mat with f16");
    // upstream refuses that one by itself, but takes any activations here
    ggml_tensor * experts = ggml_new_tensor_3d(ctx, type, COLUMNS, ROWS, 2);
    ggml_tensor * ids     = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, TOKENS);
    check(!s.supports(ggml_mul_mat_id(ctx, experts, ggml_reshape_3d(ctx, half, COLUMNS, 1, TOKENS), ids)),
          name + ": mul_mat_id with f16");
    check(!s.supports(ggml_cast(ctx, w, GGML_TYPE_F16)), name + ": copy to f16");
    check(!s.supports(ggml_cast(ctx, w, GGML_TYPE_Q8_0)), name + ": copy to another block type");
    check(!s.supports(ggml_cont(ctx, ggml_transpose(ctx, w))), name + ": transposed copy");
    check(!s.supports(ggml_cpy(ctx, view, line)), name + ": reshaping copy of a view");
    check(!s.supports(ggml_concat(ctx, w, w, 1)), name + ": concat");
    check(!s.supports(ggml_scale(ctx, w, 2.0f)), name + ": scale");
}

static void test_row_view(ggml_type type) {
    const std::string name = ggml_type_name(type);
    const weights content(type);
    session s;
    ggml_tensor * w    = ggml_new_tensor_2d(s.ctx.get(), type, COLUMNS, ROWS);
    ggml_tensor * copy = ggml_cont(s.ctx.get(), ggml_view_2d(s.ctx.get(), w, COLUMNS, ROWS / 2, 2 * w->nb[1], 0));
    check(s.supports(copy), name + ": copy of a row view");
    s.allocate();
    ggml_backend_tensor_set(w, content.blocks.data(), 0, content.blocks.size());
    const auto got         = s.compute(copy);
    const size_t row_bytes = w->nb[1];
    for (int64_t i = 0; i < ROWS / 2; i++) {
        const uint8_t * wanted = content.blocks.data() + 2 * i * row_bytes;
        check(memcmp(got.data() + i * row_bytes, wanted, row_bytes) == 0, name + ": row of a view");
    }
}

// out[column][token] = sum over rows of w[row][column] * b[row][token]
static void test_out_prod(ggml_type type) {
    const std::string name = ggml_type_name(type);
    const weights content(type);
    const auto b = wave(TOKENS * ROWS, 0.3f);
    session s;
    ggml_tensor * w  = ggml_new_tensor_2d(s.ctx.get(), type, COLUMNS, ROWS);
    ggml_tensor * x  = ggml_new_tensor_2d(s.ctx.get(), GGML_TYPE_F32, TOKENS, ROWS);
    ggml_tensor * op = ggml_out_prod(s.ctx.get(), w, x);
    check(s.supports(op), name + ": out_prod");
    s.allocate();
    ggml_backend_tensor_set(w, content.blocks.data(), 0, content.blocks.size());
    ggml_backend_tensor_set(x, b.data(), 0, b.size() * sizeof(float));
    const auto bytes = s.compute(op);
    for (int64_t t = 0; t < TOKENS; t++) {
        for (int64_t c = 0; c < COLUMNS; c++) {
            double wanted = 0;
            for (int64_t r = 0; r < ROWS; r++) {
                wanted += (double) content.values[r * COLUMNS + c] * b[r * TOKENS + t];
            }
            float got;
            memcpy(&got, bytes.data() + (t * COLUMNS + c) * sizeof(float), sizeof(float));
            check(fabs(got - wanted) <= 1e-5, name + ": out_prod value"); // sums of 7 terms up to about 1
        }
    }
}

#define ROCMFPX_TEST(id, suffix, stem, name, bytes)                                                                    \
    test_refused(GGML_TYPE_##suffix);                                                                                  \
    test_row_view(GGML_TYPE_##suffix);                                                                                 \
    test_out_prod(GGML_TYPE_##suffix);

int main() {
    ROCMFPX_TYPES(ROCMFPX_TEST)
    printf("%s\n", failures == 0 ? "ok" : "failed");
    return failures == 0 ? 0 : 1;
}
