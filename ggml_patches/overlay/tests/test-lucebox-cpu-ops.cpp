// Ops of the CPU back-end on ROCmFPX tensors, packed and repacked, on one and more threads.
// Products are compared twice: bit for bit with the scalar dot product over the activations the back-end itself
// would quantize, and by normalised squared error with decoded weights in double precision. The first implies
// that a column gives the same bits alone and in a batch, in every layout and with any number of threads.

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-rocmfpx.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

// Q8_0 activations have a step of amax/127: about 1e-5 of the energy of normal ones.
constexpr double MAX_NMSE = 5e-5;

struct format {
    ggml_type    type;
    const char * name;
    void (*dot)(int, float *, size_t, const void *, size_t, const void *, size_t, int);
};

#define ADD_FORMAT(id, suffix, stem, text, bytes) { GGML_TYPE_##suffix, text, ggml_vec_dot_##stem##_q8_0_generic },
const format formats[] = { ROCMFPX_TYPES(ADD_FORMAT) };

std::mt19937 rng(7);
int          failures = 0;

void check(bool ok, const std::string & what) {
    if (!ok) {
        std::fprintf(stderr, "FAIL %s\n", what.c_str());
        failures++;
    }
}

std::vector<float> normal(size_t n, float sigma) {
    std::normal_distribution<float> distribution(0.0f, sigma);
    std::vector<float> x(n);
    for (auto & v : x) {
        v = distribution(rng);
    }
    return x;
}

std::vector<uint8_t> quantize(ggml_type type, const std::vector<float> & x, int64_t k) {
    std::vector<uint8_t> q(ggml_row_size(type, k) * (x.size() / k));
    ggml_quantize_chunk(type, x.data(), q.data(), 0, x.size() / k, k, nullptr);
    return q;
}

std::vector<float> decode(ggml_type type, const std::vector<uint8_t> & q) {
    std::vector<float> x(q.size() / ggml_type_size(type) * ggml_blck_size(type));
    ggml_get_type_traits(type)->to_float(q.data(), x.data(), (int64_t) x.size());
    return x;
}

// A back-end, one context of weights in a buffer type of choice and one of everything else.
struct session {
    ggml_backend_t        backend = ggml_backend_cpu_init();
    ggml_backend_dev_t    device  = ggml_backend_get_device(backend);
    ggml_context *        weights = ggml_init({ 1 << 16, nullptr, true });
    ggml_context *        rest    = ggml_init({ 1 << 20, nullptr, true });
    ggml_backend_buffer_t buffers[2] = { nullptr, nullptr };

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

ggml_backend_buffer_type_t repacked_type() {
    auto * dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto   get_extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(dev), "ggml_backend_dev_get_extra_bufts");
    for (auto * type = get_extra(dev); type && *type; ++type) {
        if (std::strcmp(ggml_backend_buft_name(*type), "CPU_ROCMFPX") == 0) {
            return *type;
        }
    }
    return nullptr;
}

// One column through the scalar dot product and through decoded weights.
struct expected {
    const format &       f;
    int64_t              k, rows;
    std::vector<uint8_t> q;
    std::vector<float>   w;
    double               error = 0.0, energy = 0.0;

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
            same = same && std::memcmp(&dot, &got[r], sizeof(dot)) == 0;
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
    return std::string(op) + " " + f.name + (repacked ? " repacked" : " packed") + " threads=" + std::to_string(threads) +
           " k=" + std::to_string(k) + " rows=" + std::to_string(rows) + " columns=" + std::to_string(cols);
}

// planes of weights are met by planes * share planes of activations
void test_mul_mat(const format & f, ggml_backend_buffer_type_t type, bool repacked, int threads, int64_t k, int64_t rows,
                  int64_t cols, int64_t planes = 1, int64_t share = 1) {
    session s(threads);
    expected want(f, k, rows * planes);
    const std::vector<float> x = normal(k * cols * planes * share, 1.0f);
    ggml_tensor * w = ggml_new_tensor_3d(s.weights, f.type, k, rows, planes);
    ggml_tensor * a = ggml_new_tensor_3d(s.rest, GGML_TYPE_F32, k, cols, planes * share);
    s.place_weights(type);
    ggml_tensor * y = ggml_mul_mat(s.rest, w, a);
    const std::string what = text("mul_mat", f, repacked, threads, k, rows, cols);
    check(ggml_backend_dev_supports_op(s.device, y), what + ": refused");
    s.place_rest();
    set(w, want.q);
    set(a, x);
    s.run(y);
    const std::vector<float> got = get<float>(y);
    bool same = true;
    for (int64_t c = 0; c < cols * planes * share; ++c) {
        same = want.compare(&x[c * k], c / cols / share * rows, rows, &got[c * rows]) && same;
    }
    check(same, what + ": differs from the scalar dot product");
    check(want.nmse() < MAX_NMSE, what + ": nmse " + std::to_string(want.nmse()));
}

// broadcast: all experts of a token see the same activations
void test_mul_mat_id(const format & f, ggml_backend_buffer_type_t type, bool repacked, int threads, int64_t k, int64_t rows,
                     int64_t experts, int64_t used, int64_t tokens, bool broadcast) {
    session s(threads);
    expected want(f, k, rows * experts);
    const int64_t per_token = broadcast ? 1 : used;
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
    ggml_tensor * y = ggml_mul_mat_id(s.rest, w, a, i);
    const std::string what = text("mul_mat_id", f, repacked, threads, k, rows, tokens);
    check(ggml_backend_dev_supports_op(s.device, y), what + ": refused");
    s.place_rest();
    set(w, want.q);
    set(a, x);
    set(i, ids);
    s.run(y);
    const std::vector<float> got = get<float>(y);
    bool same = true;
    for (int64_t c = 0; c < used * tokens; ++c) {
        const int64_t act = broadcast ? c / used : c;
        same = want.compare(&x[act * k], ids[c] * rows, rows, &got[c * rows]) && same;
    }
    check(same, what + ": differs from the scalar dot product");
    check(want.nmse() < MAX_NMSE, what + ": nmse " + std::to_string(want.nmse()));
}

// float to ours by SET_ROWS and by CPY, ours to float by GET_ROWS and by CPY, ours to ours by CPY
void test_rows(const format & f, int threads, int64_t k) {
    session s(threads);
    const int64_t rows = 9;
    const std::vector<float>   x    = normal(k * 3, 0.05f);
    const std::vector<int64_t> to   = { 7, 0, 4 };
    const std::vector<int32_t> from = { 4, 7, 7, 0 };
    ggml_tensor * table = ggml_new_tensor_2d(s.rest, f.type, k, rows);
    ggml_tensor * data  = ggml_new_tensor_2d(s.rest, GGML_TYPE_F32, k, 3);
    ggml_tensor * at    = ggml_new_tensor_1d(s.rest, GGML_TYPE_I64, 3);
    ggml_tensor * pick  = ggml_new_tensor_1d(s.rest, GGML_TYPE_I32, 4);
    ggml_tensor * filled = ggml_set_rows(s.rest, table, data, at);
    ggml_tensor * picked = ggml_get_rows(s.rest, filled, pick);
    ggml_tensor * packed = ggml_cpy(s.rest, data, ggml_new_tensor_2d(s.rest, f.type, k, 3));
    ggml_tensor * copied = ggml_cpy(s.rest, packed, ggml_new_tensor_2d(s.rest, f.type, k, 3));
    ggml_tensor * opened = ggml_cpy(s.rest, copied, ggml_new_tensor_2d(s.rest, GGML_TYPE_F32, k, 3));
    ggml_tensor * added  = ggml_add(s.rest, copied, data);
    for (auto * op : { filled, picked, packed, copied, opened, added }) {
        check(ggml_backend_dev_supports_op(s.device, op), std::string(f.name) + " " + ggml_op_name(op->op) + ": refused");
    }
    s.place_rest();
    set(data, x);
    set(at, to);
    set(pick, from);
    s.run(picked);
    s.run(opened);
    s.run(added);

    const std::vector<uint8_t> q = quantize(f.type, x, k);
    const std::vector<float>   y = decode(f.type, q);
    const std::string what = std::string(f.name) + " k=" + std::to_string(k) + " threads=" + std::to_string(threads);
    std::vector<float> want;
    for (int32_t row : from) {
        const size_t source = row == 7 ? 0 : row == 0 ? 1 : 2;
        want.insert(want.end(), y.begin() + source * k, y.begin() + (source + 1) * k);
    }
    check(get<float>(picked) == want, "get_rows of set_rows " + what);
    check(get<uint8_t>(packed) == q, "cpy from float " + what);
    check(get<uint8_t>(copied) == q, "cpy " + what);
    check(get<float>(opened) == y, "cpy to float " + what);
    std::vector<float> sum = x;
    for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += y[i];
    }
    check(get<uint8_t>(added) == quantize(f.type, sum, k), "add " + what);
}

void test_products(const format & f, ggml_backend_buffer_type_t type, bool repacked) {
    for (int threads : { 1, 3 }) {
        for (int64_t cols : { 1, 2, 3, 4, 5, 6, 7, 8, 17, 33 }) {
            test_mul_mat(f, type, repacked, threads, 96, 48, cols);
        }
        test_mul_mat(f, type, repacked, threads, 256, 32, 512);
        test_mul_mat(f, type, repacked, threads, 32, 16, 1);
        test_mul_mat(f, type, repacked, threads, 160, 16, 5, 3, 2);
        for (int64_t tokens : { 1, 2, 9, 70 }) {
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
    check(!ggml_backend_dev_supports_op(s.device, ggml_mul_mat(s.rest, w, a)), std::string("24 rows accepted: ") + f.name);
    check(!ggml_backend_dev_supports_op(s.device, ggml_get_rows(s.rest, w, i)),
          std::string("get_rows of repacked weights accepted: ") + f.name);
}

} // namespace

int main() {
    ggml_backend_buffer_type_t repacked = repacked_type();
    std::printf("repacked layout: %s\n", repacked ? "offered" : "not offered by this machine");
    for (const format & f : formats) {
        const int before = failures;
        test_products(f, ggml_backend_cpu_buffer_type(), false);
        test_mul_mat(f, ggml_backend_cpu_buffer_type(), false, 2, 64, 23, 3);
        if (repacked) {
            test_products(f, repacked, true);
            test_refusals(f, repacked);
        }
        for (int threads : { 1, 3 }) {
            test_rows(f, threads, 32);
            test_rows(f, threads, 160);
        }
        std::printf("%-18s %s\n", f.name, failures == before ? "ok" : "FAIL");
    }
    return failures != 0;
}
