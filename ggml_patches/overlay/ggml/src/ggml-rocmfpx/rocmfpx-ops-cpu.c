// Owns: which ops the CPU back-end runs on ROCmFPX types. Upstream answers "yes" by default and asserts or aborts
// in the op; here what is not listed is refused, so that the scheduler or the caller can say so.

#include "rocmfpx-register.h"

static bool is_rocmfpx(const struct ggml_tensor * tensor) {
    switch (tensor->type) {
        ROCMFPX_TYPES(ROCMFPX_CASE_LABEL)
        return true;
        default:
            return false;
    }
}

// Rows are whole in memory: blocks or numbers follow each other.
static bool has_plain_rows(const struct ggml_tensor * tensor) {
    return tensor->nb[0] == ggml_type_size(tensor->type);
}

static bool supports_copy(const struct ggml_tensor * src, const struct ggml_tensor * dst) {
    if (!has_plain_rows(src) || !has_plain_rows(dst)) {
        return false;
    }
    if (src->type == dst->type) {
        // other shapes are copied by numbers, which a block type has none of
        return ggml_are_same_shape(src, dst) || (ggml_is_contiguous(src) && ggml_is_contiguous(dst));
    }
    if (is_rocmfpx(src)) {
        return dst->type == GGML_TYPE_F32 && (dst->ne[0] % QK_ROCMFPX == 0 || ggml_is_contiguous(dst));
    }
    const bool is_float = src->type == GGML_TYPE_F32 || src->type == GGML_TYPE_F16 || src->type == GGML_TYPE_BF16;
    return is_float && src->ne[0] % QK_ROCMFPX == 0 && ggml_is_contiguous(dst);
}

bool ggml_rocmfpx_cpu_supports_op(const struct ggml_tensor * op) {
    bool involved = is_rocmfpx(op);
    for (int i = 0; i < GGML_MAX_SRC && !involved; i++) {
        involved = op->src[i] != NULL && is_rocmfpx(op->src[i]);
    }
    if (!involved) {
        return true;
    }
    const struct ggml_tensor * a = op->src[0];
    const struct ggml_tensor * b = op->src[1];
    switch (op->op) {
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:
        case GGML_OP_OUT_PROD:
            return is_rocmfpx(a) && has_plain_rows(a) && b->type == GGML_TYPE_F32 && op->type == GGML_TYPE_F32;
        case GGML_OP_GET_ROWS:
            return is_rocmfpx(a) && has_plain_rows(a) && op->type == GGML_TYPE_F32;
        case GGML_OP_SET_ROWS:
            return a->type == GGML_TYPE_F32 && has_plain_rows(a);
        case GGML_OP_ADD:
            return is_rocmfpx(a) && has_plain_rows(a) && b->type == GGML_TYPE_F32 && has_plain_rows(b) &&
                   ggml_are_same_shape(a, b);
        case GGML_OP_DUP:
        case GGML_OP_CONT:
        case GGML_OP_CPY:
            return supports_copy(a, op);
        default:
            return false;
    }
}
