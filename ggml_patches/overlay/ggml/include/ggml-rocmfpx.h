#pragma once

// Owns: the block layouts of the ROCmFPX tensor types and the declarations of their CPU functions.
// Refuses: everything that needs a device, a tensor or an allocation. Plain C, clean under C++, CUDA and HIP.
//
// Shared by all types: a block holds 32 weights; a row is a whole number of blocks; blocks are packed and
// have no alignment (most sizes are no multiple of 4), so read them by bytes or memcpy.
//
// Scale byte e, E = e >> 3, M = e & 7: an unsigned E4M3 number already multiplied by one half.
//   E == 0: S = M * 2^-10          E >= 1: S = (8 + M) * 2^(E - 11)          S[0x38] = 0.5, S[0x7e] = 224
// Valid bytes are 0x00..0x7e; any other byte decodes to scale 0 and makes the row invalid.
// A weight is (float) level * S: one exact multiply. In the drawings the lowest bit is on the right.

#include "ggml-rocmfpx-types.h"
#include "ggml.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QK_ROCMFPX        32   // weights in a block
#define ROCMFPX_SCALE_MAX 0x7e // largest valid scale byte

// Levels by code.
#define ROCMFP4_LEVELS {0, 1, 2, 3, 4, 6, 8, 10, 0, -1, -2, -3, -4, -6, -8, -10}
#define ROCMFP3_LEVELS {0, 1, 2, 4, 0, -1, -2, -4}
#define ROCMFP2_LEVELS {-1, 0, 1, 2}

#ifdef __cplusplus
#define ROCMFPX_STATIC_ASSERT(cond, text) static_assert(cond, text)
extern "C" {
#else
#define ROCMFPX_STATIC_ASSERT(cond, text) _Static_assert(cond, text)
#endif

// Type 100, 4.50 bits a weight.
//   byte i, 0 <= i < 16:  | w[i+16] : 4 | w[i] : 4 |     nibble = sign : 1, magnitude index : 3
//   scale[0] is for w[0..15], scale[1] for w[16..31]
typedef struct {
    uint8_t qs[16];
    uint8_t scale[2];
} block_rocmfp4;
ROCMFPX_STATIC_ASSERT(sizeof(block_rocmfp4) == 18, "wrong rocmfp4 block size");

// Type 101, 4.25 bits a weight: nibbles and levels as type 100, one scale for all 32.
typedef struct {
    uint8_t qs[16];
    uint8_t scale;
} block_rocmfp4_fast;
ROCMFPX_STATIC_ASSERT(sizeof(block_rocmfp4_fast) == 17, "wrong rocmfp4_fast block size");

// Type 102, 6.50 bits a weight: one little-endian bit stream, w[i] at stream bits 6*i .. 6*i+5.
//   bytes 3j, 3j+1, 3j+2:  | w[4j+3] : 6 | w[4j+2] : 6 | w[4j+1] : 6 | w[4j] : 6 |
//   code = sign : 1, magnitude 0..31 : 5; code 32 decodes to +0
//   scale[0] is for w[0..15] (bytes 0..11), scale[1] for w[16..31] (bytes 12..23)
typedef struct {
    uint8_t qs[24];
    uint8_t scale[2];
} block_rocmfp6;
ROCMFPX_STATIC_ASSERT(sizeof(block_rocmfp6) == 26, "wrong rocmfp6 block size");

// Type 103, 8.25 bits a weight: two's complement levels, one scale for all 32. The encoder never writes -128.
typedef struct {
    int8_t qs[32];
    uint8_t scale;
} block_rocmfp8;
ROCMFPX_STATIC_ASSERT(sizeof(block_rocmfp8) == 33, "wrong rocmfp8 block size");

// Type 104, 3.50 bits a weight: one little-endian bit stream, w[i] at stream bits 3*i .. 3*i+2.
//   bytes 3j, 3j+1, 3j+2:  | w[8j+7] : 3 | ... | w[8j+1] : 3 | w[8j] : 3 |
//   code = sign : 1, magnitude index : 2
//   scale[0] is for w[0..15] (bytes 0..5), scale[1] for w[16..31] (bytes 6..11)
typedef struct {
    uint8_t qs[12];
    uint8_t scale[2];
} block_rocmfp3;
ROCMFPX_STATIC_ASSERT(sizeof(block_rocmfp3) == 14, "wrong rocmfp3 block size");

// Type 107, 2.50 bits a weight.
//   byte j:  | w[4j+3] : 2 | w[4j+2] : 2 | w[4j+1] : 2 | w[4j] : 2 |
//   scale[0] is for w[0..15] (bytes 0..3), scale[1] for w[16..31] (bytes 4..7)
// All-zero bytes decode to -0.0: code 0 is level -1, times scale 0.
typedef struct {
    uint8_t qs[8];
    uint8_t scale[2];
} block_rocmfp2;
ROCMFPX_STATIC_ASSERT(sizeof(block_rocmfp2) == 10, "wrong rocmfp2 block size");

// Functions, one set a type. k and n count weights and are multiples of 32. `stem` is one of
// rocmfp4, rocmfp4_fast, rocmfp6, rocmfp8, rocmfp3, rocmfp2.
//
//   quantize_row_<stem>_ref     x[k] -> y[k/32]; deterministic, bit-exact, no importance weights
//   dequantize_row_<stem>       x[k/32] -> y[k]
//   quantize_<stem>             nrows rows of n_per_row floats -> dst; imatrix: n_per_row importance weights
//                               reused for every row, or NULL; returns the bytes written
//   validate_row_<stem>         true if nbytes is a whole number of blocks and every scale byte is valid
//   ggml_vec_dot_<stem>_q8_0_generic   scalar reference of the dot product with Q8_0; the order of its float
//                               operations is part of the format's definition
//   ggml_vec_dot_<stem>_q8_0    the fastest one of this machine, equal to the reference bit for bit;
//                               bs, bx, by and nrc as in ggml_vec_dot_t, nrc is 1
#define ROCMFPX_DECLARE(id, suffix, stem, name, bytes)                                                                 \
    GGML_API void quantize_row_##stem##_ref(const float * GGML_RESTRICT x, block_##stem * GGML_RESTRICT y, int64_t k); \
    GGML_API void dequantize_row_##stem(const block_##stem * GGML_RESTRICT x, float * GGML_RESTRICT y, int64_t k);     \
    GGML_API size_t quantize_##stem(const float * GGML_RESTRICT src, void * GGML_RESTRICT dst, int64_t nrows,          \
                                    int64_t n_per_row, const float * imatrix);                                         \
    GGML_API bool validate_row_##stem(const void * data, size_t nbytes);                                               \
    GGML_API void ggml_vec_dot_##stem##_q8_0_generic(int n, float * GGML_RESTRICT s, size_t bs,                        \
                                                     const void * GGML_RESTRICT vx, size_t bx,                         \
                                                     const void * GGML_RESTRICT vy, size_t by, int nrc);               \
    GGML_API void ggml_vec_dot_##stem##_q8_0(int n, float * GGML_RESTRICT s, size_t bs, const void * GGML_RESTRICT vx, \
                                             size_t bx, const void * GGML_RESTRICT vy, size_t by, int nrc);

ROCMFPX_TYPES(ROCMFPX_DECLARE)

// As quantize_<stem>, with scales that minimise sum(imatrix * error^2), for type 103 too. Not the reference's
// bytes, but the same format. type is one of ROCMFPX_TYPES.
GGML_API size_t rocmfpx_quantize_search(int type, const float * GGML_RESTRICT src, void * GGML_RESTRICT dst,
                                        int64_t nrows, int64_t n_per_row, const float * imatrix);

#ifdef __cplusplus
}
#endif
