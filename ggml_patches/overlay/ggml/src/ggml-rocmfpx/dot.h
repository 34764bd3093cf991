#pragma once

// Owns: what the fast ROCmFPX dot products share: the list of engines, the repacked weight layout and the
// repacked activation layout.
//
// Every engine gives the bits of the scalar reference. Integer sums are exact in any order; the few float
// operations a block has keep the order and the rounding of the reference, one float accumulator a result.
//   order A, one scale:   sum += (s * d) * i
//   order A, two scales:  sum += (s0 * d) * i0 + (s1 * d) * i1      (type 100)
//   order B:              sum += d * (s0 * i0 + s1 * i1)            (types 102, 104, 107)
// Powers of two may move between factors, as no product here leaves float's normal range: engines decode
// scales to S / 128 (one shift and one half-to-float conversion) and multiply d by 128.

#include "ggml-rocmfpx.h"

// -- Repacked weights ------------------------------------------------------------------------------------
// A band is ROCMFPX_BAND rows, of the same size in bytes as the rows it is made from. It is one stream, as two
// halve the speed of reading from memory: chunks of ROCMFPX_CHUNK blocks (the last one may be shorter), each the
// scales of its blocks, as [block][scale][row] with invalid bytes set to 0, then the codes of its blocks.
// Whole chunks keep cache lines aligned. Codes of a block are 64-byte lines. Byte 4 * row + j of a line holds bits of
// weights 4 * g + j, 0 <= j < 4, of that row, where g is a group of four weights, 0 <= g < 8:
//   fp8   8 lines, line g:                  | level ^ 0x80 : 8 |
//   fp6   6 lines, x y z of t = 0, 1:       | hi : 2 | level + 31 : 6 |   g = 4t, 4t+1, 4t+2; the three hi make 4t+3
//   fp4   4 lines, line v:                  | g = v + 4 : 4 | g = v : 4 |
//   fp3   3 lines x y z, v = 0, 1, 2:       | hi : 2 | g = v + 3 : 3 | g = v : 3 |   the three hi make g = 6, 7
//   fp2   2 lines, line v:                  | g = 4v + 3 : 2 | 4v + 2 : 2 | 4v + 1 : 2 | 4v : 2 |
// where a code of six bits split over three hi fields has bits 0..1 in x, 2..3 in y, 4..5 in z.
#define ROCMFPX_BAND  16
#define ROCMFPX_CHUNK 4
#define ROCMFPX_LINE  64

// -- Repacked activations --------------------------------------------------------------------------------
// Kernels multiply unsigned (level + bias) by signed q, so a sum starts at -bias * sum(q). A panel is up to
// ROCMFPX_PANEL columns, stored as [block][column].
#define ROCMFPX_PANEL 16
typedef struct {
    int8_t q[QK_ROCMFPX];
    int32_t start[2]; // -bias * sum of q: of each half with two scales, of all in [0] with one
    float d;          // activation scale times 128
    int32_t unused;   // 48 bytes: q stays aligned to 16
} rocmfpx_act;
ROCMFPX_STATIC_ASSERT(sizeof(rocmfpx_act) == 48, "wrong rocmfpx_act size");

// Bias of the unsigned levels.
#define ROCMFP2_BIAS 1
#define ROCMFP3_BIAS 4
#define ROCMFP4_BIAS 10
#define ROCMFP6_BIAS 31
#define ROCMFP8_BIAS 128

enum { ROCMFPX_FP4, ROCMFPX_FP4_FAST, ROCMFPX_FP6, ROCMFPX_FP8, ROCMFPX_FP3, ROCMFPX_FP2, ROCMFPX_FORMATS };

// Dot product of n_blocks blocks with as many Q8_0 blocks.
typedef float (*rocmfpx_dot)(int64_t n_blocks, const uint8_t * x, const uint8_t * y);

// out[column][row] of one band and n_cols columns of a panel that is `width` columns wide; 1 <= n_cols.
typedef void (*rocmfpx_tile)(int64_t n_blocks, const uint8_t * band, const rocmfpx_act * panel, int width, int n_cols,
                             float * out);

// One engine. The scalar one has no tiles: without a vector unit a repacked layout gains nothing.
typedef struct {
    const char * name;
    bool (*works)(void);       // on this machine
    const rocmfpx_dot * dot;   // by format
    const rocmfpx_tile * tile; // by format, or NULL
} rocmfpx_kernels;

#ifdef __cplusplus
extern "C" {
#endif

// Format of a ggml_type id, -1 if it is not one of ours.
GGML_API int rocmfpx_format_of(int type);

// ROCMFPX_BAND packed rows, one after another, to a band. The two do not overlap.
GGML_API void rocmfpx_pack_band(int format, const uint8_t * rows, int64_t n_blocks, uint8_t * band);

// One Q8_0 row to a column of a panel that is `width` columns wide.
GGML_API void rocmfpx_pack_column(int format, const uint8_t * q8_0, int64_t n_blocks, rocmfpx_act * column, int width);

// The engines this library was compiled with, slowest first; NULL past the last.
GGML_API const rocmfpx_kernels * rocmfpx_kernels_at(int i);

// The last one that works here.
GGML_API const rocmfpx_kernels * rocmfpx_kernels_best(void);

float rocmfpx_dot_fp8_avx2(int64_t n_blocks, const uint8_t * x, const uint8_t * y);
extern const rocmfpx_dot rocmfpx_dot_avx2[ROCMFPX_FORMATS];
extern const rocmfpx_dot rocmfpx_dot_avx512[ROCMFPX_FORMATS];
extern const rocmfpx_dot rocmfpx_dot_neon[ROCMFPX_FORMATS];
extern const rocmfpx_tile rocmfpx_tile_avx2[ROCMFPX_FORMATS];
extern const rocmfpx_tile rocmfpx_tile_avx512[ROCMFPX_FORMATS];
extern const rocmfpx_tile rocmfpx_tile_neon[ROCMFPX_FORMATS];

#ifdef __cplusplus
}
#endif
