#pragma once

// Owns: what one ROCmFPX type puts into each table and switch of upstream's ggml.c, ggml-quants.c and ggml-cpu.
// A hook there is one line, ROCMFPX_TYPES(ROCMFPX_CASE_...), expanded here; a new type adds no hook.

#include "ggml-rocmfpx.h"

ROCMFPX_STATIC_ASSERT(GGML_TYPE_UPSTREAM_COUNT <= ROCMFPX_TYPE_FIRST, "upstream's type ids have reached ours");

// ggml.c, type_traits[]
#define ROCMFPX_CASE_TRAITS(id, suffix, stem, name, bytes)                                                             \
    [GGML_TYPE_##suffix] = {                                                                                           \
        .type_name      = name,                                                                                        \
        .blck_size      = QK_ROCMFPX,                                                                                  \
        .type_size      = sizeof(block_##stem),                                                                        \
        .is_quantized   = true,                                                                                        \
        .to_float       = (ggml_to_float_t) dequantize_row_##stem,                                                     \
        .from_float_ref = (ggml_from_float_t) quantize_row_##stem##_ref,                                               \
    },

// ggml.c, ggml_ftype_to_ggml_type()
#define ROCMFPX_CASE_FTYPE_TO_TYPE(id, suffix, type)                                                                   \
    case GGML_FTYPE_MOSTLY_##suffix:                                                                                   \
        wtype = GGML_TYPE_##type;                                                                                      \
        break;

// ggml.c, ggml_quantize_chunk()
#define ROCMFPX_CASE_QUANTIZE(id, suffix, stem, name, bytes)                                                           \
    case GGML_TYPE_##suffix:                                                                                           \
        result = quantize_##stem(src + start, (char *) dst + start_row * row_size, nrows, n_per_row, imatrix);         \
        break;

// ggml-quants.c, ggml_validate_row_data()
#define ROCMFPX_CASE_VALIDATE(id, suffix, stem, name, bytes)                                                           \
    case GGML_TYPE_##suffix:                                                                                           \
        if (!validate_row_##stem(data, nbytes)) {                                                                      \
            fprintf(stderr, "%s: invalid scale byte in a row of type %s\n", __func__, name);                           \
            return false;                                                                                              \
        }                                                                                                              \
        break;

// ggml-cpu.c, type_traits_cpu[]
#define ROCMFPX_CASE_CPU_TRAITS(id, suffix, stem, name, bytes)                                                         \
    [GGML_TYPE_##suffix] = {                                                                                           \
        .from_float   = (ggml_from_float_t) quantize_row_##stem##_ref,                                                 \
        .vec_dot      = ggml_vec_dot_##stem##_q8_0,                                                                    \
        .vec_dot_type = GGML_TYPE_Q8_0,                                                                                \
        .nrows        = 1,                                                                                             \
    },

// ops.cpp: one more label of a list of quantized types
#define ROCMFPX_CASE_LABEL(id, suffix, stem, name, bytes) case GGML_TYPE_##suffix:

#ifdef __cplusplus
extern "C" {
#endif

// True unless op reads or writes a ROCmFPX type in a way the CPU back-end has no code for.
bool ggml_rocmfpx_cpu_supports_op(const struct ggml_tensor * op);

#ifdef __cplusplus
}
#endif
