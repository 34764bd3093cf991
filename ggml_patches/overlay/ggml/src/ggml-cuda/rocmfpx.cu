// Owns: what the GPU back-end answers about ROCmFPX tensors: which ops it runs, and which kernel multiplies.

#include "mmq.cuh"
#include "rocmfpx-limits.cuh"
#include "rocmfpx-rows.cuh"
#include "rocmfpx.cuh"

#include <atomic>
#include <cstring>

static int type_index(ggml_type type) {
    int index = 0;
#define COUNT_TYPES(id, suffix, stem, name, bytes)                                                                     \
    if (type == GGML_TYPE_##suffix) {                                                                                  \
        return index;                                                                                                  \
    }                                                                                                                  \
    ++index;
    ROCMFPX_TYPES(COUNT_TYPES)
    return -1;
}

struct chosen_limits {
    std::atomic<int> mmv_columns{-1}, mmv_tokens{-1}, mmq_columns{-1};
};
static chosen_limits chosen[ROCMFPX_TYPE_COUNT];

static bool set_limits(int type, ggml_rocmfpx_limits limits) {
    const int only = type < 0 ? -1 : type_index((ggml_type) type);
    if (type >= 0 && only < 0) {
        return false;
    }
    for (int i = 0; i < ROCMFPX_TYPE_COUNT; ++i) {
        if (type < 0 || i == only) {
            chosen[i].mmv_columns = limits.mmv_columns;
            chosen[i].mmv_tokens  = limits.mmv_tokens;
            chosen[i].mmq_columns = limits.mmq_columns;
        }
    }
    return true;
}

void * ggml_cuda_rocmfpx_proc_address(const char * name) {
    return strcmp(name, GGML_ROCMFPX_SET_LIMITS) == 0 ? (void *) set_limits : nullptr;
}

static int limit_of(const std::atomic<int> & chosen_limit, int measured, int least) {
    const int limit = chosen_limit >= 0 ? chosen_limit.load() : measured;
    return std::max(least, std::min(limit, ROCMFPX_MMV_MAX_COLUMNS));
}

// At least one column: fused products of one column are given to this kernel without asking.
bool ggml_cuda_rocmfpx_use_mmv(ggml_type type, int cc, int64_t n_columns) {
    const int i        = type_index(type);
    const int measured = rocmfpx_mmv_limits[rocmfpx_device_class_of(cc)][i].columns;
    return ggml_cuda_rocmfpx_mmv_supported(type, cc) && n_columns <= limit_of(chosen[i].mmv_columns, measured, 1);
}

int ggml_cuda_rocmfpx_mmv_max_tokens(ggml_type type, int cc) {
    const int i        = type_index(type);
    const int measured = rocmfpx_mmv_limits[rocmfpx_device_class_of(cc)][i].tokens;
    return ggml_cuda_rocmfpx_mmv_supported(type, cc) ? limit_of(chosen[i].mmv_tokens, measured, 0) : 0;
}

// Experts always, where MMQ runs at all: the other way reads the ids on the host.
bool ggml_cuda_rocmfpx_use_mmq(ggml_type type, int cc, int64_t n_columns, int64_t n_experts) {
    const int limit = chosen[type_index(type)].mmq_columns;
    if (n_experts == 0 && limit >= 0 && n_columns > limit) {
        return false;
    }
    if (ggml_cuda_should_use_mmq(ggml_cuda_rocmfpx_mmq_like(type), cc, n_columns, n_experts)) {
        return true;
    }
    const bool has_dp4a =
        GGML_CUDA_CC_IS_NVIDIA(cc) ? ggml_cuda_highest_compiled_arch(cc) >= GGML_CUDA_CC_DP4A : GGML_CUDA_CC_IS_AMD(cc);
    const bool has_tile = ggml_cuda_info().devices[ggml_cuda_get_device()].smpbo >= 48 * 1024;
    return (n_experts > 0 || limit >= 0) && has_dp4a && has_tile;
}

static bool is_ours(const ggml_tensor * t) {
    return ggml_cuda_rocmfpx_is_type(t->type);
}

bool ggml_cuda_rocmfpx_involves(const ggml_tensor * op) {
    bool found = is_ours(op);
    for (int i = 0; i < GGML_MAX_SRC && !found; ++i) {
        found = op->src[i] != nullptr && is_ours(op->src[i]);
    }
    return found;
}

static bool has_plain_rows(const ggml_tensor * t) {
    return t->nb[0] == ggml_type_size(t->type);
}

static bool is_float(const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16;
}

static bool supports_copy(const ggml_tensor * src, const ggml_tensor * dst) {
    const bool blocks_fit = src->ne[0] % QK_ROCMFPX == 0 && (dst->ne[0] % QK_ROCMFPX == 0 || ggml_is_contiguous(dst));
    if (!has_plain_rows(src) || !has_plain_rows(dst) || !blocks_fit) {
        return false;
    }
    return src->type == dst->type || (is_ours(src) && is_float(dst)) || (is_float(src) && is_ours(dst));
}

bool ggml_cuda_rocmfpx_cpy(ggml_backend_cuda_context & ctx, const ggml_tensor * src, ggml_tensor * dst) {
    if (!is_ours(src) && !is_ours(dst)) {
        return false;
    }
    if (src->type == dst->type && ggml_is_contiguous(src) && ggml_is_contiguous(dst)) {
        return false; // one memcpy
    }
    GGML_ASSERT(supports_copy(src, dst));
    if (src->type == dst->type) {
        ggml_cuda_rocmfpx_cpy_blocks(src, dst, ctx.stream());
    } else if (is_ours(src)) {
        ggml_cuda_rocmfpx_cpy_decode(src, dst, ctx.stream());
    } else {
        ggml_cuda_rocmfpx_cpy_quantize(src, dst, ctx.stream());
    }
    return true;
}

static bool supports_mul_mat(const ggml_tensor * op) {
    const ggml_tensor * a = op->src[0];
    const ggml_tensor * b = op->src[1];
    if (!is_ours(a) || !has_plain_rows(a) || b->type != GGML_TYPE_F32 || !has_plain_rows(b) ||
        op->type != GGML_TYPE_F32) {
        return false;
    }
    // as upstream: experts in full F32 precision have no kernel
    return op->op != GGML_OP_MUL_MAT_ID || ggml_get_op_params_i32(op, 3) != GGML_PREC_F32;
}

bool ggml_cuda_rocmfpx_supports_op(const ggml_tensor * op) {
    const ggml_tensor * a = op->src[0];
    const ggml_tensor * b = op->src[1];
    switch (op->op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
            return true;
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:
            return supports_mul_mat(op);
        case GGML_OP_GET_ROWS:
            return is_ours(a) && has_plain_rows(a) && is_float(op) && has_plain_rows(op) && b->type == GGML_TYPE_I32 &&
                   b->ne[3] == 1;
        case GGML_OP_SET_ROWS:
            return is_ours(op) && has_plain_rows(op) && a->type == GGML_TYPE_F32 && has_plain_rows(a) &&
                   (b->type == GGML_TYPE_I64 || b->type == GGML_TYPE_I32);
        case GGML_OP_CPY:
        case GGML_OP_CONT:
        case GGML_OP_DUP:
            return supports_copy(a, op);
        default:
            return false;
    }
}
