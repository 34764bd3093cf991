// Ops of the CPU back-end that read or write ROCmFPX rows, against the reference encoder and decoder.

#include "cpu-session.h"

#include <cmath>

namespace {

// float to ours by SET_ROWS and by CPY, ours to float by GET_ROWS and by CPY, ours to ours by CPY
void test_rows(const format & f, int threads, int64_t k) {
    session s(threads);
    const int64_t rows              = 9;
    const std::vector<float> x      = normal(k * 3, 0.05f);
    const std::vector<int64_t> to   = {7, 0, 4};
    const std::vector<int32_t> from = {4, 7, 7, 0};
    ggml_tensor * table             = ggml_new_tensor_2d(s.rest, f.type, k, rows);
    ggml_tensor * data              = ggml_new_tensor_2d(s.rest, GGML_TYPE_F32, k, 3);
    ggml_tensor * at                = ggml_new_tensor_1d(s.rest, GGML_TYPE_I64, 3);
    ggml_tensor * pick              = ggml_new_tensor_1d(s.rest, GGML_TYPE_I32, 4);
    ggml_tensor * filled            = ggml_set_rows(s.rest, table, data, at);
    ggml_tensor * picked            = ggml_get_rows(s.rest, filled, pick);
    ggml_tensor * packed            = ggml_cpy(s.rest, data, ggml_new_tensor_2d(s.rest, f.type, k, 3));
    ggml_tensor * copied            = ggml_cpy(s.rest, packed, ggml_new_tensor_2d(s.rest, f.type, k, 3));
    ggml_tensor * opened            = ggml_cpy(s.rest, copied, ggml_new_tensor_2d(s.rest, GGML_TYPE_F32, k, 3));
    ggml_tensor * added             = ggml_add(s.rest, copied, data);
    for (auto * op : {filled, picked, packed, copied, opened, added}) {
        check(ggml_backend_dev_supports_op(s.device, op),
              std::string(f.name) + " " + ggml_op_name(op->op) + ": refused");
    }
    s.place_rest();
    set(data, x);
    set(at, to);
    set(pick, from);
    s.run(picked);
    s.run(opened);
    s.run(added);

    const std::vector<uint8_t> q = quantize(f.type, x, k);
    const std::vector<float> y   = decode(f.type, q);
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

// Rows of a wider matrix, and halves as the source.
void test_strided(const format & f, int threads) {
    session s(threads);
    const int64_t k = 64, rows = 6;
    const std::vector<float> x   = normal(2 * k * rows, 0.05f);
    const std::vector<uint8_t> q = quantize(f.type, x, 2 * k);
    ggml_tensor * wide           = ggml_new_tensor_2d(s.rest, f.type, 2 * k, rows);
    ggml_tensor * right          = ggml_view_2d(s.rest, wide, k, rows, wide->nb[1], ggml_row_size(f.type, k));
    ggml_tensor * opened         = ggml_cpy(s.rest, right, ggml_new_tensor_2d(s.rest, GGML_TYPE_F32, k, rows));
    ggml_tensor * copied         = ggml_cpy(s.rest, right, ggml_new_tensor_2d(s.rest, f.type, k, rows));
    ggml_tensor * data           = ggml_new_tensor_2d(s.rest, GGML_TYPE_F32, 2 * k, rows);
    ggml_tensor * half           = ggml_cast(s.rest, data, GGML_TYPE_F16);
    ggml_tensor * packed         = ggml_cpy(s.rest, half, ggml_new_tensor_2d(s.rest, f.type, 2 * k, rows));
    for (auto * op : {opened, copied, packed}) {
        check(ggml_backend_dev_supports_op(s.device, op),
              std::string(f.name) + " strided " + ggml_op_name(op->op) + ": refused");
    }
    s.place_rest();
    set(wide, q);
    set(data, x);
    s.run(opened);
    s.run(copied);
    s.run(packed);

    const std::vector<float> all = decode(f.type, q);
    std::vector<float> want;
    for (int64_t r = 0; r < rows; ++r) {
        want.insert(want.end(), all.begin() + (2 * r + 1) * k, all.begin() + (2 * r + 2) * k);
    }
    std::vector<float> rounded = x;
    for (float & v : rounded) {
        v = ggml_fp16_to_fp32(ggml_fp32_to_fp16(v));
    }
    check(get<float>(opened) == want, std::string("cpy to float of a row view ") + f.name);
    check(decode(f.type, get<uint8_t>(copied)) == want, std::string("cpy of a row view ") + f.name);
    check(get<uint8_t>(packed) == quantize(f.type, rounded, 2 * k), std::string("cpy from half ") + f.name);
}

} // namespace

int main() {
    for (const format & f : formats) {
        for (int threads : {1, 3}) {
            test_rows(f, threads, 32);
            test_rows(f, threads, 160);
            test_strided(f, threads);
        }
    }
    std::puts(failures == 0 ? "ok" : "failed");
    return failures != 0;
}
