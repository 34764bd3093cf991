#pragma once

// Owns: what the ROCmFPX codecs share inside ggml: the description of a format, the scale table, the error
// of a scale, the row loops. Nothing here is installed; callers outside this folder use ggml-rocmfpx.h.
//
// Float semantics are part of the formats. Compile every file that includes this one with -ffp-contract=off
// and without fast math: one fused multiply-add changes about one block in a million.

#include "ggml-rocmfpx.h"

#include <math.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "ROCmFPX codecs need IEEE arithmetic: no -ffast-math"
#endif
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

#define ROCMFPX_Q8_0_BYTES 34 // activation block: half scale, 32 int8

enum rocmfpx_rule { ROCMFPX_RULE_FP2, ROCMFPX_RULE_FP3, ROCMFPX_RULE_FP4, ROCMFPX_RULE_FP6, ROCMFPX_RULE_FP8 };

// One format. `code` and `level` are the format; everything else is layout.
typedef struct {
    enum rocmfpx_rule rule;
    int type;                      // ggml_type id
    int bits;                      // of one code
    int group;                     // weights under one scale byte, 16 or 32
    int top;                       // largest level: the search for a scale starts at max/top
    bool nibble_halves;            // code stream holds weights 0, 16, 1, 17, ... instead of 0, 1, 2, ...
    bool refuses_overflow;         // a scale whose error is not below FLT_MAX cannot be chosen; none left: scale 0
    bool nearest_scale;            // without importance weights: no search, the scale nearest to max/top
    bool scale_first;              // dot product: scale * activation scale before the integer sum (else after)
    uint8_t (*code)(float q);      // q = weight times the rounded reciprocal of the scale
    int8_t (*level)(uint8_t code); // all 2^bits codes
} rocmfpx_codec;

extern const rocmfpx_codec rocmfpx_codec_rocmfp2;
extern const rocmfpx_codec rocmfpx_codec_rocmfp3;
extern const rocmfpx_codec rocmfpx_codec_rocmfp4;
extern const rocmfpx_codec rocmfpx_codec_rocmfp4_fast;
extern const rocmfpx_codec rocmfpx_codec_rocmfp6;
extern const rocmfpx_codec rocmfpx_codec_rocmfp8;

// NULL for an id that is not one of ours.
const rocmfpx_codec * rocmfpx_codec_of(int type);

static inline int rocmfpx_code_bytes(const rocmfpx_codec * c) {
    return QK_ROCMFPX / 8 * c->bits;
}

static inline int rocmfpx_scale_count(const rocmfpx_codec * c) {
    return QK_ROCMFPX / c->group;
}

static inline int rocmfpx_block_bytes(const rocmfpx_codec * c) {
    return rocmfpx_code_bytes(c) + rocmfpx_scale_count(c);
}

// Scale by byte and its rounded reciprocal (0 where the scale is 0); invalid bytes give 0. The tail pads
// vector loads that start at the last valid byte.
#define ROCMFPX_SCALE_TABLE (256 + 16)
extern const float rocmfpx_scale[ROCMFPX_SCALE_TABLE];
extern const float rocmfpx_reciprocal[ROCMFPX_SCALE_TABLE];

// Codes of one block, in weight order, to and from their packed form.
void rocmfpx_pack(const rocmfpx_codec * c, const uint8_t * codes, uint8_t * packed);
void rocmfpx_unpack(const rocmfpx_codec * c, const uint8_t * packed, uint8_t * codes);

// The 32 integer levels of one block.
void rocmfpx_block_levels(const rocmfpx_codec * c, const uint8_t * block, int8_t * levels);

// Mean energy of a row of k weights, the constant under the root of every importance weight of the row.
float rocmfpx_row_energy(const float * x, int64_t k);

// Importance weights of n weights: w[i] = qw[i] * sqrt(energy + x[i]^2), 0 where unusable.
void rocmfpx_weights(const float * x, const float * qw, float energy, int n, float * w);

// Largest magnitude among the finite weights.
float rocmfpx_group_max(const float * x, int n);

// The byte with the scale nearest to target, in float32 arithmetic, smallest byte on ties.
int rocmfpx_nearest_scale(float target);

// The scale byte of one group: smallest error, smallest byte on ties. w is NULL without importance.
int rocmfpx_fit_ref(const rocmfpx_codec * c, const float * x, const float * w);

// The codes of one group under a scale byte.
void rocmfpx_codes_ref(const rocmfpx_codec * c, const float * x, int scale_byte, uint8_t * codes);

// The steps of encoding; each may be replaced by a faster one with the same results.
typedef struct {
    float (*row_energy)(const float * x, int64_t k);
    void (*weights)(const float * x, const float * qw, float energy, int n, float * w);
    int (*fit)(const rocmfpx_codec * c, const float * x, const float * w);
    void (*codes)(const rocmfpx_codec * c, const float * x, int scale_byte, uint8_t * codes);
} rocmfpx_steps;

extern const rocmfpx_steps rocmfpx_steps_ref;

// Encode nrows rows of k weights; returns the bytes written.
size_t rocmfpx_encode_rows(const rocmfpx_codec * c, const rocmfpx_steps * steps, const float * x, uint8_t * y,
                           int64_t nrows, int64_t k, const float * qw);

// The ways of this library, all equal bit for bit.
enum rocmfpx_engine { ROCMFPX_SCALAR, ROCMFPX_AVX2, ROCMFPX_AVX512, ROCMFPX_NEON };
bool rocmfpx_engine_works(enum rocmfpx_engine engine);
size_t rocmfpx_quantize_with(const rocmfpx_codec * c, enum rocmfpx_engine engine, const float * x, void * y,
                             int64_t nrows, int64_t k, const float * qw);
size_t rocmfpx_quantize(const rocmfpx_codec * c, const float * x, void * y, int64_t nrows, int64_t k,
                        const float * qw); // the fastest engine of this machine

// NULL where the compiler or the processor lacks the instructions.
const rocmfpx_steps * rocmfpx_steps_avx2(void);
const rocmfpx_steps * rocmfpx_steps_avx512(void);
const rocmfpx_steps * rocmfpx_steps_neon(void);
const rocmfpx_steps * rocmfpx_steps_best(void); // of this machine, never NULL

void rocmfpx_decode_row(const rocmfpx_codec * c, const uint8_t * x, float * y, int64_t k);
bool rocmfpx_validate(const rocmfpx_codec * c, const uint8_t * data, size_t nbytes);
float rocmfpx_dot_q8_0(const rocmfpx_codec * c, int64_t n, const uint8_t * x, const uint8_t * y);

// The public functions of one format, each a call of the functions above.
#define ROCMFPX_DEFINE(stem)                                                                                           \
    void quantize_row_##stem##_ref(const float * GGML_RESTRICT x, block_##stem * GGML_RESTRICT y, int64_t k) {         \
        rocmfpx_encode_rows(&rocmfpx_codec_##stem, &rocmfpx_steps_ref, x, (uint8_t *) y, 1, k, NULL);                  \
    }                                                                                                                  \
    void dequantize_row_##stem(const block_##stem * GGML_RESTRICT x, float * GGML_RESTRICT y, int64_t k) {             \
        rocmfpx_decode_row(&rocmfpx_codec_##stem, (const uint8_t *) x, y, k);                                          \
    }                                                                                                                  \
    size_t quantize_##stem(const float * GGML_RESTRICT src, void * GGML_RESTRICT dst, int64_t nrows,                   \
                           int64_t n_per_row, const float * imatrix) {                                                 \
        return rocmfpx_quantize(&rocmfpx_codec_##stem, src, dst, nrows, n_per_row, imatrix);                           \
    }                                                                                                                  \
    bool validate_row_##stem(const void * data, size_t nbytes) {                                                       \
        return rocmfpx_validate(&rocmfpx_codec_##stem, (const uint8_t *) data, nbytes);                                \
    }                                                                                                                  \
    void ggml_vec_dot_##stem##_q8_0_generic(int n, float * GGML_RESTRICT s, size_t bs, const void * GGML_RESTRICT vx,  \
                                            size_t bx, const void * GGML_RESTRICT vy, size_t by, int nrc) {            \
        (void) bs, (void) bx, (void) by, (void) nrc;                                                                   \
        *s = rocmfpx_dot_q8_0(&rocmfpx_codec_##stem, n, (const uint8_t *) vx, (const uint8_t *) vy);                   \
    }
