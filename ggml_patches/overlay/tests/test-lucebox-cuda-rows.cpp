// ROCmFPX rows on the GPU against the CPU, bit for bit: get_rows, set_rows and copies in all directions, which decode
// and encode on the device. Then what the GPU must refuse, and the limits that choose the kernel of a product.

#include "gpu-session.h"

#include "ggml-rocmfpx-gpu.h"

namespace {

constexpr int64_t K = 352, ROWS = 19; // K is an odd multiple of 32

byte_vector noise(size_t n) {
    byte_vector x(n);
    for (uint8_t & b : x) {
        b = (uint8_t) rng();
    }
    return x;
}

// Rows an encoder may trip over: one family a row, the rest normal.
std::vector<float> hard_rows(int64_t k, int64_t rows) {
    std::vector<float> x = normal(k * rows, 0.05f);
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < k; ++i) {
            float & v           = x[r * k + i];
            const float step    = (float) (int) (rng() % 65) - 32.0f;
            const uint32_t bits = (uint32_t) rng();
            switch (r % 16) {
                case 0:
                    v = 0.0f;
                    break;
                case 1:
                    v = i % 29 == 0 ? 3.0f : 0.0f;
                    break;
                case 2:
                    std::memcpy(&v, &bits, sizeof(v));
                    break; // any float, NaN and infinity too
                case 3:
                    v *= 1e-42f;
                    break; // subnormal
                case 4:
                    v *= 1e10f;
                    break;
                case 5:
                    v *= 1e19f;
                    break; // squares overflow
                case 6:
                    v *= 1e36f;
                    break;
                case 7:
                    v = step * 0.25f;
                    break; // ties between levels
                case 8:
                    v = step / 1024.0f;
                    break;
                case 9:
                    v = i % 32 < 16 ? v * 1e-3f : v * 1e3f;
                    break;
                case 10:
                    v *= 1e-19f;
                    break; // squares are subnormal
                case 11:
                    v = i % 7 == 0 ? INFINITY : v;
                    break;
                case 12:
                    v = i % 5 == 0 ? NAN : i % 5 == 1 ? -INFINITY : v;
                    break;
                case 13:
                    v *= 20.0f;
                    break;
                default:
                    break;
            }
        }
    }
    return x;
}

void test_get_rows(comparison & c, ggml_type type) {
    for (int64_t k : {32, 96, 256, 352, 4096}) {
        for (int64_t count : {1, 5, 64}) {
            for (int64_t planes : {1, 3}) {
                std::vector<int32_t> ids(count * planes);
                for (int32_t & i : ids) {
                    i = (int32_t) (rng() % ROWS);
                }
                const auto build = [=](ggml_context * ctx) {
                    ggml_tensor * w = ggml_new_tensor_3d(ctx, type, k, ROWS, planes);
                    ggml_tensor * i = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, count, planes);
                    return op_graph{ggml_get_rows(ctx, w, i), {w, i}};
                };
                c.equal(build, {noise(ggml_row_size(type, k) * ROWS * planes), as_bytes(ids)},
                        "get_rows k=" + std::to_string(k) + " count=" + std::to_string(count));
            }
        }
    }
    c.report(std::string("get_rows ") + ggml_type_name(type));
}

// Values that stand for ids of an index type.
byte_vector index_of(const std::vector<int32_t> & ids, ggml_type type) {
    return type == GGML_TYPE_I32 ? as_bytes(ids) : as_bytes(std::vector<int64_t>(ids.begin(), ids.end()));
}

void test_set_rows(comparison & c, ggml_type type) {
    for (ggml_type index : {GGML_TYPE_I32, GGML_TYPE_I64}) {
        for (int64_t k : {32, 96, 256, 352, 2048}) {
            for (int64_t planes : {1, 4}) {
                const int64_t count = 16;
                std::vector<int32_t> ids(count * 2);
                for (int64_t i = 0; i < count * 2; ++i) {
                    ids[i] = (int32_t) ((7 * i + 3) % ROWS);
                }
                // two rows of ids for four planes: they repeat
                const auto build = [=](ggml_context * ctx) {
                    ggml_tensor * w = ggml_new_tensor_3d(ctx, type, k, ROWS, planes);
                    ggml_tensor * x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, k, count, planes);
                    ggml_tensor * i = ggml_new_tensor_2d(ctx, index, count, planes == 1 ? 1 : 2);
                    return op_graph{ggml_set_rows(ctx, w, x, i), {w, x, i}};
                };
                const std::vector<int32_t> used(ids.begin(), ids.begin() + count * (planes == 1 ? 1 : 2));
                c.equal(build,
                        {noise(ggml_row_size(type, k) * ROWS * planes), as_bytes(hard_rows(k, count * planes)),
                         index_of(used, index)},
                        "set_rows k=" + std::to_string(k) + " planes=" + std::to_string(planes));
            }
        }
    }
    c.report(std::string("set_rows ") + ggml_type_name(type));
}

op_builder copy(ggml_type from, ggml_type to, int64_t k, int64_t rows) {
    return [=](ggml_context * ctx) {
        ggml_tensor * x = ggml_new_tensor_2d(ctx, from, k, rows);
        ggml_tensor * y = ggml_new_tensor_2d(ctx, to, k, rows);
        return op_graph{ggml_cpy(ctx, x, y), {x}};
    };
}

byte_vector converted(const std::vector<float> & x, ggml_type to) {
    byte_vector y(x.size() * ggml_type_size(to));
    if (to == GGML_TYPE_F16) {
        ggml_fp32_to_fp16_row(x.data(), (ggml_fp16_t *) y.data(), (int64_t) x.size());
    } else if (to == GGML_TYPE_BF16) {
        ggml_fp32_to_bf16_row_ref(x.data(), (ggml_bf16_t *) y.data(), (int64_t) x.size());
    } else {
        std::memcpy(y.data(), x.data(), y.size());
    }
    return y;
}

std::vector<float> decoded(ggml_type type, const byte_vector & q) {
    std::vector<float> x(q.size() / ggml_type_size(type) * ggml_blck_size(type));
    ggml_get_type_traits(type)->to_float(q.data(), x.data(), (int64_t) x.size());
    return x;
}

// A float row as the encoder sees it: rounded to the source's type.
std::vector<float> rounded(const byte_vector & x, ggml_type type) {
    std::vector<float> y(x.size() / ggml_type_size(type));
    if (type == GGML_TYPE_F16) {
        ggml_fp16_to_fp32_row((const ggml_fp16_t *) x.data(), y.data(), (int64_t) y.size());
    } else if (type == GGML_TYPE_BF16) {
        ggml_bf16_to_fp32_row((const ggml_bf16_t *) x.data(), y.data(), (int64_t) y.size());
    } else {
        std::memcpy(y.data(), x.data(), x.size());
    }
    return y;
}

void test_copies(comparison & c, ggml_type type) {
    const int64_t rows = 160;
    for (ggml_type number : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16}) {
        const std::string name = ggml_type_name(number);
        const byte_vector q    = noise(ggml_row_size(type, K) * ROWS);
        c.equal_to(copy(type, number, K, ROWS), {q}, converted(decoded(type, q), number), "copy to " + name);

        const byte_vector x = converted(hard_rows(K, rows), number);
        byte_vector want(ggml_row_size(type, K) * rows);
        const std::vector<float> seen = rounded(x, number);
        for (int64_t r = 0; r < rows; ++r) {
            ggml_get_type_traits(type)->from_float_ref(&seen[r * K], &want[r * ggml_row_size(type, K)], K);
        }
        c.equal_to(copy(number, type, K, rows), {x}, want, "copy from " + name);
    }
    const byte_vector q = noise(ggml_row_size(type, K) * ROWS);
    c.equal(copy(type, type, K, ROWS), {q}, "copy of blocks");
    const auto gaps = [=](ggml_context * ctx) { // every row of the source but its first three blocks
        ggml_tensor * x = ggml_new_tensor_2d(ctx, type, K, ROWS);
        ggml_tensor * v = ggml_view_2d(ctx, x, K - 96, ROWS, x->nb[1], 3 * ggml_type_size(type));
        ggml_tensor * y = ggml_new_tensor_2d(ctx, type, K - 96, ROWS);
        return op_graph{ggml_cpy(ctx, v, y), {x}};
    };
    c.equal(gaps, {q}, "copy of part of each row");
    const auto strided = [=](ggml_context * ctx) { // floats with gaps, planes swapped
        ggml_tensor * x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, K, 4, 5);
        ggml_tensor * v = ggml_permute(ctx, ggml_view_3d(ctx, x, K - 32, 4, 5, x->nb[1], x->nb[2], 64), 0, 2, 1, 3);
        return op_graph{ggml_cpy(ctx, v, ggml_new_tensor_3d(ctx, type, K - 32, 5, 4)), {x}};
    };
    c.equal(strided, {as_bytes(hard_rows(K, 20))}, "copy from strided floats");
    const auto folded = [=](ggml_context * ctx) { // another shape on the other side
        ggml_tensor * x = ggml_new_tensor_2d(ctx, type, K, ROWS);
        return op_graph{ggml_cpy(ctx, x, ggml_new_tensor_1d(ctx, GGML_TYPE_F32, K * ROWS)), {x}};
    };
    c.equal(folded, {q}, "copy to one long row");
    c.report(std::string("copies ") + ggml_type_name(type));
}

// What has no kernel is refused when asked, not in the op.
void test_refusals(comparison & c, ggml_type type) {
    ggml_context_ptr owner{ggml_init({1 << 20, nullptr, true})};
    ggml_context * ctx  = owner.get();
    ggml_tensor * w     = ggml_new_tensor_2d(ctx, type, 64, 8);
    ggml_tensor * other = ggml_new_tensor_2d(
        ctx, type == GGML_TYPE_Q8_0_ROCMFPX ? GGML_TYPE_Q2_0_ROCMFP2 : GGML_TYPE_Q8_0_ROCMFPX, 64, 8);
    ggml_tensor * f16  = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, 64, 3);
    ggml_tensor * q    = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 64, 2, 4, 1);
    ggml_tensor * kv   = ggml_new_tensor_4d(ctx, type, 64, 256, 4, 1);
    const auto refused = [&](ggml_tensor * op, const char * what) {
        c.count(!ggml_backend_supports_op(c.gpu.get(), op), std::string(what) + " accepted");
    };
    refused(ggml_mul_mat(ctx, w, f16), "product with f16");
    refused(ggml_cpy(ctx, w, other), "copy between two of our types");
    refused(ggml_concat(ctx, w, w, 1), "concat");
    refused(ggml_flash_attn_ext(ctx, q, kv, kv, nullptr, 1.0f, 0.0f, 0.0f), "attention over a cache of the type");
    c.report(std::string("refusals ") + ggml_type_name(type));
}

// Each way to multiply gives the product, whatever the limits say.
void test_limits(comparison & c, ggml_type type) {
    ggml_backend_dev_t device = ggml_backend_get_device(c.gpu.get());
    void * found   = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), GGML_ROCMFPX_SET_LIMITS);
    const auto set = (ggml_rocmfpx_set_limits_t) found;
    if (!c.has_gpu) {
        return;
    }
    c.count(set != nullptr, "no setter of limits");
    if (set == nullptr) {
        return;
    }
    c.count(!set(GGML_TYPE_Q8_0, {1, 1, 1}), "limits of another type accepted");
    const ggml_rocmfpx_limits tries[] = {{1, 0, -1}, {8, 8, 0}, {4, 2, 16}, {-1, -1, -1}};
    for (const ggml_rocmfpx_limits & limits : tries) {
        c.count(set(type, limits), "limits refused");
        for (int64_t columns : {1, 2, 5, 8, 9, 32}) {
            const auto build = [=](ggml_context * ctx) {
                ggml_tensor * w = ggml_new_tensor_2d(ctx, type, 512, 72);
                ggml_tensor * x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 512, columns);
                return op_graph{ggml_mul_mat(ctx, w, x), {w, x}};
            };
            c.close(build, {random_weights(type, 512, 72), as_bytes(normal(512 * columns, 1.0f))}, 5e-4,
                    "limits " + std::to_string(limits.mmv_columns) + " columns=" + std::to_string(columns));
        }
    }
    c.report(std::string("limits ") + ggml_type_name(type));
}

} // namespace

int main() {
    comparison c;
    for (ggml_type type : our_types) {
        test_get_rows(c, type);
        test_set_rows(c, type);
        test_copies(c, type);
        test_refusals(c, type);
        test_limits(c, type);
    }
    return c.finish();
}
