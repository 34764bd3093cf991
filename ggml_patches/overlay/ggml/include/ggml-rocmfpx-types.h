#pragma once

// Owns: the ids and names of the ROCmFPX tensor types and file types. Both are a file-format promise: an id
// in a GGUF file is all that says how its bytes are read, so an entry is never renumbered or reused.
// ggml.h includes this file, so nothing else belongs here: every edit recompiles the whole tree.
// Block layouts and functions are in ggml-rocmfpx.h.

// Every block holds 32 weights.
// X(id, enum suffix, stem of block and function names, name printed and read, block bytes).
// clang-format off
#define ROCMFPX_TYPES(X)                                              \
    X(100, Q4_0_ROCMFP4,      rocmfp4,      "q4_0_rocmfp4",      18) \
    X(101, Q4_0_ROCMFP4_FAST, rocmfp4_fast, "q4_0_rocmfp4_fast", 17) \
    X(102, Q6_0_ROCMFPX,      rocmfp6,      "q6_0_rocmfpx",      26) \
    X(103, Q8_0_ROCMFPX,      rocmfp8,      "q8_0_rocmfpx",      33) \
    X(104, Q3_0_ROCMFPX,      rocmfp3,      "q3_0_rocmfpx",      14) \
    X(107, Q2_0_ROCMFP2,      rocmfp2,      "q2_0_rocmfp2",      10)
// clang-format on

// First id of our range; upstream's own count must end below it. One past our last id is GGML_TYPE_COUNT.
#define ROCMFPX_TYPE_FIRST 100
#define ROCMFPX_TYPE_END   108

// X(id, name suffix, suffix of the dominant tensor type). One file type is a mix: the named type fills most
// of the file and some tensors are kept at another one.
// clang-format off
#define ROCMFPX_FTYPES(X)                                          \
    X(100, Q4_0_ROCMFP4,               Q4_0_ROCMFP4)               \
    X(101, Q4_0_ROCMFP4_LEAN,          Q4_0_ROCMFP4)               \
    X(102, Q4_0_ROCMFP4_COHERENT,      Q4_0_ROCMFP4)               \
    X(103, Q4_0_ROCMFP4_FAST,          Q4_0_ROCMFP4_FAST)          \
    X(104, Q4_0_ROCMFP4_FAST_COHERENT, Q4_0_ROCMFP4_FAST)          \
    X(105, Q4_0_ROCMFP4_STRIX,         Q4_0_ROCMFP4_FAST)          \
    X(106, Q4_0_ROCMFP4_STRIX_LEAN,    Q4_0_ROCMFP4_FAST)          \
    X(110, Q6_0_ROCMFPX,               Q6_0_ROCMFPX)               \
    X(111, Q8_0_ROCMFPX,               Q8_0_ROCMFPX)               \
    X(112, Q3_0_ROCMFPX,               Q3_0_ROCMFPX)               \
    X(118, Q2_0_ROCMFP2,               Q2_0_ROCMFP2)               \
    X(119, Q2_0_ROCMFP2_STRIX,         Q2_0_ROCMFP2)
// clang-format on

// Places where a list is expanded.
#define ROCMFPX_CASE_TYPE(id, suffix, stem, name, bytes) GGML_TYPE_##suffix = id,
#define ROCMFPX_CASE_FTYPE(id, suffix, type)             GGML_FTYPE_MOSTLY_##suffix = id,
#define ROCMFPX_CASE_LLAMA_FTYPE(id, suffix, type)       LLAMA_FTYPE_MOSTLY_##suffix = id,

// In llama: names of file types, the file type guessed from the commonest tensor type, the type a file type
// starts from, and llama-quantize's list.
#define ROCMFPX_CASE_FTYPE_NAME(id, suffix, type)                                                                      \
    case LLAMA_FTYPE_MOSTLY_##suffix:                                                                                  \
        name = LLAMA_FTYPE_PREFIX #suffix;                                                                             \
        break;
#define ROCMFPX_CASE_GUESS_FTYPE(id, suffix, stem, name, bytes)                                                        \
    case GGML_TYPE_##suffix:                                                                                           \
        ftype = LLAMA_FTYPE_MOSTLY_##suffix;                                                                           \
        break;
#define ROCMFPX_CASE_DEFAULT_TYPE(id, suffix, type)                                                                    \
    case LLAMA_FTYPE_MOSTLY_##suffix:                                                                                  \
        return GGML_TYPE_##type;
#define ROCMFPX_CASE_QUANT_OPTION(id, suffix, type)                                                                    \
    {                                                                                                                  \
        #suffix,                                                                                                       \
        LLAMA_FTYPE_MOSTLY_##suffix,                                                                                   \
        " ROCmFPX, mostly " #type,                                                                                     \
    },
