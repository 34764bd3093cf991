// Owns: which engine quantises on this machine. All engines give the same bytes.

#include "rocmfpx-codec.h"

bool rocmfpx_engine_works(enum rocmfpx_engine engine) {
    return engine == ROCMFPX_SCALAR;
}

size_t rocmfpx_quantize_with(const rocmfpx_codec * c, enum rocmfpx_engine engine, const float * x, void * y,
                             int64_t nrows, int64_t k, const float * qw) {
    (void) engine;
    return rocmfpx_encode_rows(c, x, (uint8_t *) y, nrows, k, qw, rocmfpx_fit_ref, rocmfpx_codes_ref);
}

size_t rocmfpx_quantize(const rocmfpx_codec * c, const float * x, void * y, int64_t nrows, int64_t k,
                        const float * qw) {
    return rocmfpx_quantize_with(c, ROCMFPX_SCALAR, x, y, nrows, k, qw);
}
