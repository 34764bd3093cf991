// Owns: which ops the CPU back-end runs on ROCmFPX types. Upstream answers "yes" by default and aborts in the op;
// here what is not listed is refused, so that the scheduler or the caller can say so.

#include "rocmfpx-register.h"

static bool is_rocmfpx(const struct ggml_tensor * tensor) {
    switch (tensor->type) {
        ROCMFPX_TYPES(ROCMFPX_CASE_LABEL)
            return true;
        default:
            return false;
    }
}

static bool is_float(const struct ggml_tensor * tensor) {
    return tensor->type == GGML_TYPE_F32 || tensor->type == GGML_TYPE_F16 || tensor->type == GGML_TYPE_BF16;
}

bool ggml_rocmfpx_cpu_supports_op(const struct ggml_tensor * op) {
    bool involved = is_rocmfpx(op);
    for (int i = 0; i < GGML_MAX_SRC && !involved; i++) {
        involved = op->src[i] != NULL && is_rocmfpx(op->src[i]);
    }
    if (!involved) {
        return true;
    }
    switch (op->op) {
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:
        case GGML_OP_OUT_PROD:
            return is_rocmfpx(op->src[0]) && op->src[1]->type == GGML_TYPE_F32;
        case GGML_OP_GET_ROWS:
            return op->type == GGML_TYPE_F32;
        case GGML_OP_SET_ROWS:
            return op->src[0]->type == GGML_TYPE_F32;
        case GGML_OP_ADD:
            return is_rocmfpx(op->src[0]) && op->src[1]->type == GGML_TYPE_F32;
        case GGML_OP_DUP:
        case GGML_OP_CONT:
        case GGML_OP_CPY:
            // same type copies bytes; float to ours quantizes row by row; ours to F32 decodes
            return op->src[0]->type == op->type || (is_float(op->src[0]) && is_rocmfpx(op)) ||
                   op->type == GGML_TYPE_F32;
        default:
            return false;
    }
}
