// Owns: the choice of the dot product for this machine, once a type. Every choice gives the reference's bits.

#include "ggml-rocmfpx.h"

#define ROCMFPX_DEFINE_DOT(id, suffix, stem, name, bytes)                                                       \
    void ggml_vec_dot_##stem##_q8_0(int n, float * GGML_RESTRICT s, size_t bs, const void * GGML_RESTRICT vx,   \
                                    size_t bx, const void * GGML_RESTRICT vy, size_t by, int nrc) {             \
        ggml_vec_dot_##stem##_q8_0_generic(n, s, bs, vx, bx, vy, by, nrc);                                      \
    }

ROCMFPX_TYPES(ROCMFPX_DEFINE_DOT)
