// MUL_MAT and MUL_MAT_ID of the CPU back-end on ROCmFPX weights, packed and repacked, on one and more threads.
// Results are compared twice: bit for bit with the scalar dot product over the activations the back-end itself
// would quantize, and by normalised squared error with decoded weights in double precision. The first implies
// that a column gives the same bits alone and in a batch, in every layout and with any number of threads.

#include "cpu-session.h"

namespace {

// Q8_0 activations have a step of amax/127: about 2e-5 of the energy of normal ones, more in a short row.
constexpr double MAX_NMSE = 5e-4;

// One column through the scalar dot product and through decoded weights.
struct expected {
    const format & f;
    int64_t k, rows;
    std::vector<uint8_t> q;
    std::vector<float> w;
    double error = 0.0, energy = 0.0;

    expected(const format & format, int64_t k, int64_t rows)
        : f(format), k(k), rows(rows), q(quantize(f.type, normal(k * rows, 0.05f), k)), w(decode(f.type, q)) {}

    // got: results of rows [first, first + n) for one activation row
    bool compare(const float * act, int64_t first, int64_t n, const float * got) {
        std::vector<uint8_t> y(ggml_row_size(GGML_TYPE_Q8_0, k));
        ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float(act, y.data(), k);
        bool same = true;
        for (int64_t r = 0; r < n; ++r) {
            float dot = 0.0f;
            f.dot((int) k, &dot, 0, q.data() + (first + r) * ggml_row_size(f.type, k), 0, y.data(), 0, 1);
            same         = same && std::memcmp(&dot, &got[r], sizeof(dot)) == 0;
            double exact = 0.0;
            for (int64_t i = 0; i < k; ++i) {
                exact += (double) w[(first + r) * k + i] * (double) act[i];
            }
            error += (exact - got[r]) * (exact - got[r]);
            energy += exact * exact;
        }
        return same;
    }

    double nmse() const { return error / energy; }
};

std::string text(const char * op, const format & f, bool repacked, int threads, int64_t k, int64_t rows, int64_t cols) {
    return std::string(op) + " " + f.name + (repacked ? " repacked" : " packed") +
           " threads=" + std::to_string(threads) + " k=" + std::to_string(k) + " rows=" + std::to_string(rows) +
           " columns=" + std::to_string(cols);
}

// planes of weights are met by planes * share planes of activations
void test_mul_mat(const format & f, ggml_backend_buffer_type_t type, bool repacked, int threads, int64_t k,
                  int64_t rows, int64_t cols, int64_t planes = 1, int64_t share = 1) {
    session s(threads);
    expected want(f, k, rows * planes);
    const std::vector<float> x = normal(k * cols * planes * share, 1.0f);
    ggml_tensor * w            = ggml_new_tensor_3d(s.weights, f.type, k, rows, planes);
    ggml_tensor * a            = ggml_new_tensor_3d(s.rest, GGML_TYPE_F32, k, cols, planes * share);
    s.place_weights(type);
    ggml_tensor * y        = ggml_mul_mat(s.rest, w, a);
    const std::string what = text("mul_mat", f, repacked, threads, k, rows, cols);
    check(ggml_backend_dev_supports_op(s.device, y), what + ": refused");
    s.place_rest();
    set(w, want.q);
    set(a, x);
    s.run(y);
    const std::vector<float> got = get<float>(y);
    bool same                    = true;
    for (int64_t c = 0; c < cols * planes * share; ++c) {
        same = want.compare(&x[c * k], c / cols / share * rows, rows, &got[c * rows]) && same;
    }
    check(same, what + ": differs from the scalar dot product");
    check(want.nmse() < MAX_NMSE, what + ": nmse " + std::to_string(want.nmse()));
}

// broadcast: all experts of a token see the same activations
void test_mul_mat_id(const format & f, ggml_backend_buffer_type_t type, bool repacked, int threads, int64_t k,
                     int64_t rows, int64_t experts, int64_t used, int64_t tokens, bool broadcast) {
    session s(threads);
    expected want(f, k, rows * experts);
    const int64_t per_token    = broadcast ? 1 : used;
    const std::vector<float> x = normal(k * per_token * tokens, 1.0f);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < tokens; ++t) {
        const int32_t first = (int32_t) (rng() % experts);
        for (int64_t u = 0; u < used; ++u) {
            ids.push_back((int32_t) ((first + 3 * u) % experts));
        }
    }
    ggml_tensor * w = ggml_new_tensor_3d(s.weights, f.type, k, rows, experts);
    ggml_tensor * a = ggml_new_tensor_3d(s.rest, GGML_TYPE_F32, k, per_token, tokens);
    ggml_tensor * i = ggml_new_tensor_2d(s.rest, GGML_TYPE_I32, used, tokens);
    s.place_weights(type);
    ggml_tensor * y        = ggml_mul_mat_id(s.rest, w, a, i);
    const std::string what = text("mul_mat_id", f, repacked, threads, k, rows, tokens);
    check(ggml_backend_dev_supports_op(s.device, y), what + ": refused");
    s.place_rest();
    set(w, want.q);
    set(a, x);
    set(i, ids);
    s.run(y);
    const std::vector<float> got = get<float>(y);
    bool same                    = true;
    for (int64_t c = 0; c < used * tokens; ++c) {
        const int64_t act = broadcast ? c / used : c;
        same              = want.compare(&x[act * k], ids[c] * rows, rows, &got[c * rows]) && same;
    }
    check(same, what + ": differs from the scalar dot product");
    check(want.nmse() < MAX_NMSE, what + ": nmse " + std::to_string(want.nmse()));
}

void test_products(const format & f, ggml_backend_buffer_type_t type, bool repacked) {
    for (int threads : {1, 3}) {
        for (int64_t cols : {1, 2, 3, 4, 5, 6, 7, 8, 17, 33}) {
            test_mul_mat(f, type, repacked, threads, 96, 48, cols);
        }
        test_mul_mat(f, type, repacked, threads, 256, 32, 512);
        test_mul_mat(f, type, repacked, threads, 32, 16, 1);
        test_mul_mat(f, type, repacked, threads, 160, 16, 5, 3, 2);
        for (int64_t tokens : {1, 2, 9, 70}) {
            test_mul_mat_id(f, type, repacked, threads, 96, 32, 7, 2, tokens, true);
            test_mul_mat_id(f, type, repacked, threads, 64, 48, 5, 3, tokens, false);
        }
    }
}

// Rows that fill no whole band stay packed: the buffer type must refuse them.
void test_refusals(const format & f, ggml_backend_buffer_type_t type) {
    session s(1);
    ggml_tensor * w = ggml_new_tensor_2d(s.weights, f.type, 64, 24);
    ggml_tensor * a = ggml_new_tensor_2d(s.rest, GGML_TYPE_F32, 64, 2);
    ggml_tensor * i = ggml_new_tensor_1d(s.rest, GGML_TYPE_I32, 2);
    s.place_weights(type);
    check(!ggml_backend_dev_supports_op(s.device, ggml_mul_mat(s.rest, w, a)),
          std::string("24 rows accepted: ") + f.name);
    check(!ggml_backend_dev_supports_op(s.device, ggml_get_rows(s.rest, w, i)),
          std::string("get_rows of repacked weights accepted: ") + f.name);
}

} // namespace

int main() {
    ggml_backend_buffer_type_t repacked = repacked_type();
    std::fprintf(stderr, "repacked layout: %s\n", repacked ? "offered" : "not offered by this machine");
    for (const format & f : formats) {
        test_products(f, ggml_backend_cpu_buffer_type(), false);
        test_mul_mat(f, ggml_backend_cpu_buffer_type(), false, 2, 64, 23, 3);
        if (repacked) {
            test_products(f, repacked, true);
            test_refusals(f, repacked);
        }
    }
    std::puts(failures == 0 ? "ok" : "failed");
    return failures != 0;
}
