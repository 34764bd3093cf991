#pragma once

// Owns: settings of the GPU back-ends for the ROCmFPX types. Found by name, since a back-end may be a module:
//   ggml_backend_reg_get_proc_address(reg, GGML_ROCMFPX_SET_LIMITS)

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GGML_ROCMFPX_SET_LIMITS "ggml_backend_rocmfpx_set_limits"

// Who multiplies, by the number of columns. Negative: as measured for the device and the type.
struct ggml_rocmfpx_limits {
    int mmv_columns; // the matrix-vector kernel up to so many columns, at most 8
    int mmv_tokens;  // and up to so many tokens when experts are chosen by ids, at most 8; 0: never
    int mmq_columns; // above that MMQ up to so many columns, and conversion to F16 above these
};

// type: a ggml_type of ours, or -1 for all six. Returns false for any other type. Not while a graph runs.
typedef bool (*ggml_rocmfpx_set_limits_t)(int type, struct ggml_rocmfpx_limits limits);

#ifdef __cplusplus
}
#endif
