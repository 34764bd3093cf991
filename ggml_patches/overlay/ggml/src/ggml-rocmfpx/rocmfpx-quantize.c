// Owns: which engine quantises on this machine. All engines give the same bytes.

#include "rocmfpx-codec.h"

static const rocmfpx_steps * steps_of(enum rocmfpx_engine engine) {
    switch (engine) {
        case ROCMFPX_SCALAR:
            return &rocmfpx_steps_ref;
        case ROCMFPX_AVX2:
            return rocmfpx_steps_avx2();
        case ROCMFPX_AVX512:
            return rocmfpx_steps_avx512();
        case ROCMFPX_NEON:
            return rocmfpx_steps_neon();
    }
    return NULL;
}

bool rocmfpx_engine_works(enum rocmfpx_engine engine) {
    return steps_of(engine) != NULL;
}

size_t rocmfpx_quantize_with(const rocmfpx_codec * c, enum rocmfpx_engine engine, const float * x, void * y,
                             int64_t nrows, int64_t k, const float * qw) {
    return rocmfpx_encode_rows(c, steps_of(engine), x, (uint8_t *) y, nrows, k, qw);
}

const rocmfpx_steps * rocmfpx_steps_best(void) {
    for (int engine = ROCMFPX_NEON; engine > ROCMFPX_SCALAR; --engine) {
        const rocmfpx_steps * steps = steps_of((enum rocmfpx_engine) engine);
        if (steps) {
            return steps;
        }
    }
    return &rocmfpx_steps_ref;
}

size_t rocmfpx_quantize(const rocmfpx_codec * c, const float * x, void * y, int64_t nrows, int64_t k,
                        const float * qw) {
    return rocmfpx_encode_rows(c, rocmfpx_steps_best(), x, (uint8_t *) y, nrows, k, qw);
}
