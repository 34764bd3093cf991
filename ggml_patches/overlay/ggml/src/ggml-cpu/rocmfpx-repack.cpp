// Owns: the CPU buffer type whose ROCmFPX tensors lie in bands of 16 rows (ggml-rocmfpx/dot.h), of the same size
// as packed. Such a tensor can be the weights of a product and nothing else, so a loader that asks which ops a
// buffer type supports puts embeddings elsewhere.

#include "rocmfpx-repack.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-rocmfpx/dot.h"
#include "rocmfpx-matmul.h"
#include "traits.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

ggml_backend_buffer_type_t buffer_type();

class traits : public ggml::cpu::tensor_traits {
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = rocmfpx_matmul_work_size(op, n_threads);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        rocmfpx_matmul(params, op);
        return true;
    }
};

// Whole bands of whole planes; a view must start at a band.
bool can_repack(const ggml_tensor * t) {
    return rocmfpx_format_of(t->type) >= 0 && t->ne[1] % ROCMFPX_BAND == 0 && ggml_is_contiguous(t) &&
           (t->view_src == nullptr || (t->view_src->ne[0] == t->ne[0] && t->view_src->extra != nullptr &&
                                       t->view_offs % (ROCMFPX_BAND * t->nb[1]) == 0));
}

class extra : public ggml::cpu::extra_buffer_type {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        if ((op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID) || !rocmfpx_matmul_supports(op)) {
            return false;
        }
        const ggml_tensor * weights = op->src[0];
        if (weights->buffer == nullptr || weights->buffer->buft != buffer_type() || !can_repack(weights)) {
            return false;
        }
        for (int i = 1; i < 3; ++i) {
            if (op->src[i] && op->src[i]->buffer && !ggml_backend_buft_is_host(op->src[i]->buffer->buft)) {
                return false;
            }
        }
        return true;
    }

    // A view's buffer is known only when the graph runs, so a refusal may come too late to be asked for: better
    // an end with words than a product over bytes in another order.
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        const ggml_tensor * weights = op->src[0];
        if (weights == nullptr || weights->buffer == nullptr || weights->buffer->buft != buffer_type() ||
            ggml_op_is_empty(op->op)) {
            return nullptr;
        }
        if ((op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID) || weights->extra == nullptr) {
            GGML_ABORT("%s of '%s': repacked weights can only be multiplied, whole bands of %d rows at a time",
                       ggml_op_name(op->op), weights->name, ROCMFPX_BAND);
        }
        return (ggml::cpu::tensor_traits *) weights->extra;
    }
};

ggml_status init_tensor(ggml_backend_buffer_t, ggml_tensor * tensor) {
    static traits repacked;
    tensor->extra = can_repack(tensor) ? &repacked : nullptr;
    return GGML_STATUS_SUCCESS;
}

// Whole bands at a time, in any order; a tensor that cannot be repacked is refused by supports_op, never filled.
void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    const int format  = rocmfpx_format_of(tensor->type);
    const size_t band = ROCMFPX_BAND * ggml_row_size(tensor->type, tensor->ne[0]);
    GGML_ASSERT(tensor->extra != nullptr);
    GGML_ASSERT(offset % band == 0 && size % band == 0);
    for (size_t at = 0; at < size; at += band) {
        rocmfpx_pack_band(format, (const uint8_t *) data + at, tensor->ne[0] / QK_ROCMFPX,
                          (uint8_t *) tensor->data + offset + at);
    }
}

const char * get_name(ggml_backend_buffer_type_t) {
    return "CPU_ROCMFPX";
}

// Weights are read once a token, in order: with small pages the address look-ups alone cost a third of the speed.
void advise_huge_pages(ggml_backend_buffer_t buffer) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t page = 4096;
    const uintptr_t first    = GGML_PAD((uintptr_t) ggml_backend_buffer_get_base(buffer), page);
    const uintptr_t end      = (uintptr_t) ggml_backend_buffer_get_base(buffer) + ggml_backend_buffer_get_size(buffer);
    if (end > first) {
        madvise((void *) first, (end - first) / page * page, MADV_HUGEPAGE); // a wish; refusal changes nothing
    }
#else
    GGML_UNUSED(buffer);
#endif
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer == nullptr) {
        return nullptr;
    }
    advise_huge_pages(buffer);
    buffer->buft              = buft;
    buffer->iface.init_tensor = init_tensor;
    buffer->iface.set_tensor  = set_tensor;
    buffer->iface.get_tensor  = nullptr;
    buffer->iface.cpy_tensor  = nullptr;
    return buffer;
}

size_t get_alignment(ggml_backend_buffer_type_t) {
    return 64;
}

ggml_backend_buffer_type_t buffer_type() {
    static ggml_backend_buffer_type type = {
        /* .iface   = */ {
            /* .get_name         = */ get_name,
            /* .alloc_buffer     = */ alloc_buffer,
            /* .alloc_buffer_n   = */ nullptr,
            /* .get_alignment    = */ get_alignment,
            /* .get_max_size     = */ nullptr,
            /* .get_alloc_size   = */ nullptr,
            /* .get_alloc_size_n = */ nullptr,
            /* .is_host          = */ nullptr,
        },
        /* .device  = */ ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
        /* .context = */ new extra(),
    };
    return &type;
}

} // namespace

void ggml_backend_cpu_rocmfpx_add_buffer_type(std::vector<ggml_backend_buffer_type_t> & list) {
    if (rocmfpx_kernels_best()->tile != nullptr) {
        list.push_back(buffer_type());
    }
}
