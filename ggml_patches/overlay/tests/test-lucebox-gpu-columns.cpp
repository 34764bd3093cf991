// Each column of a product of several, and each token of MUL_MAT_ID, is bit-equal to that column or token alone on the
// first GPU, for Q8_0 and MXFP4: speculation verifies several tokens at a time and must not change the text.
// Without a GPU there is nothing to test. Upstream sums 5 to 8 columns, and several tokens, in another order than one.

#include "cpu-session.h"

#include <algorithm>

namespace {

constexpr int64_t ROWS    = 768; // enough, times the experts used, for two rows a warp
constexpr int64_t EXPERTS = 8;
constexpr int64_t USED    = 6;

ggml_backend_t gpu() {
    static ggml_backend_t made = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_GPU, nullptr);
    return made;
}

// The product of `columns` columns (or tokens, with experts) of x, rows of a column side by side.
std::vector<float> multiply(ggml_type type, int64_t k, const std::vector<uint8_t> & weights,
                            const std::vector<float> & x, const std::vector<int32_t> & ids, bool gated) {
    const int64_t columns = (int64_t) x.size() / k;
    ggml_context * c      = ggml_init({1 << 20, nullptr, true});
    ggml_tensor * w       = ggml_new_tensor_3d(c, type, k, ROWS, ids.empty() ? 1 : EXPERTS);
    ggml_tensor * a       = ids.empty() ? ggml_new_tensor_2d(c, GGML_TYPE_F32, k, columns)
                                        : ggml_new_tensor_3d(c, GGML_TYPE_F32, k, 1, columns);
    ggml_tensor * chosen  = ids.empty() ? nullptr : ggml_new_tensor_2d(c, GGML_TYPE_I32, USED, columns);
    auto product          = [&] { return chosen ? ggml_mul_mat_id(c, w, a, chosen) : ggml_mul_mat(c, w, a); };
    ggml_tensor * y       = product();
    y                     = gated ? ggml_swiglu_clamp(c, product(), y, 10.0f) : y;
    ggml_cgraph * graph   = ggml_new_graph(c);
    ggml_build_forward_expand(graph, y);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(c, gpu());
    set(w, weights);
    set(a, x);
    if (chosen) {
        set(chosen, ids);
    }
    check(ggml_backend_graph_compute(gpu(), graph) == GGML_STATUS_SUCCESS, "graph");
    const std::vector<float> result = get<float>(y);
    ggml_backend_buffer_free(buffer);
    ggml_free(c);
    return result;
}

// One matrix, or experts that hold its rows in other orders.
std::vector<uint8_t> some_weights(ggml_type type, int64_t k, int64_t side) {
    const std::vector<uint8_t> one = quantize(type, normal((size_t) (k * ROWS), 0.05f), k);
    std::vector<uint8_t> all;
    for (int64_t e = 0; e < side; ++e) {
        const auto middle = one.begin() + (std::ptrdiff_t) (one.size() / ROWS) * e * 17;
        all.insert(all.end(), middle, one.end());
        all.insert(all.end(), one.begin(), middle);
    }
    return all;
}

void compare(ggml_type type, int64_t k, bool experts, bool gated) {
    const std::vector<uint8_t> weights = some_weights(type, k, experts ? EXPERTS : 1);
    for (int64_t columns = 2; columns <= 8; ++columns) {
        const std::vector<float> x = normal((size_t) (k * columns), 1.0f);
        std::vector<int32_t> ids;
        for (int64_t i = 0; experts && i < columns * USED; ++i) {
            ids.push_back((int32_t) ((i + i / USED * 3) % EXPERTS));
        }
        const std::vector<float> together = multiply(type, k, weights, x, ids, gated);
        const size_t size                 = together.size() / (size_t) columns;
        for (int64_t j = 0; j < columns; ++j) {
            const std::vector<float> one_x(x.begin() + j * k, x.begin() + (j + 1) * k);
            const std::vector<int32_t> one_ids(ids.begin() + (experts ? j * USED : 0),
                                               ids.begin() + (experts ? (j + 1) * USED : 0));
            const std::vector<float> alone = multiply(type, k, weights, one_x, one_ids, gated);
            size_t differ                  = 0;
            for (size_t i = 0; i < size; ++i) {
                differ += std::memcmp(&alone[i], &together[(size_t) j * size + i], sizeof(float)) != 0;
            }
            check(differ == 0, std::string(ggml_type_name(type)) + " k=" + std::to_string(k) +
                                   (experts ? " experts" : "") + (gated ? " gated" : "") + ", column " +
                                   std::to_string(j) + " of " + std::to_string(columns) + ": " +
                                   std::to_string(differ) + " of " + std::to_string(size) + " values differ");
        }
    }
}

} // namespace

int main() {
    if (gpu() == nullptr) {
        std::printf("no GPU: nothing to test\n");
        return 0;
    }
    int compared = 0;
    for (ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_MXFP4}) {
        for (int64_t k : {1024, 2048, 4096, 8192}) {
            for (bool experts : {false, true}) {
                for (bool gated : {false, true}) {
                    compare(type, k, experts, gated);
                    compared++;
                }
            }
        }
    }
    std::printf("%d shapes, %d differences\n", compared, failures);
    return failures ? 1 : 0;
}
