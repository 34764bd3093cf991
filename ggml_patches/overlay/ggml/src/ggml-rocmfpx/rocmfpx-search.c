// Owns: the opt-in encoder. Same formats, better scales than the reference's: the weighted squared error itself
// is minimised, for type 103 too, where the reference takes the nearest scale and may clip.

#include "rocmfpx-codec.h"

static float no_energy(const float * x, int64_t k) {
    (void) x, (void) k;
    return 0.0f;
}

static void importance_alone(const float * x, const float * qw, float energy, int n, float * w) {
    (void) energy;
    for (int i = 0; i < n; ++i) {
        w[i] = isfinite(x[i]) && isfinite(qw[i]) && qw[i] > 0.0f ? qw[i] : 0.0f;
    }
}

size_t rocmfpx_quantize_search(int type, const float * GGML_RESTRICT src, void * GGML_RESTRICT dst, int64_t nrows,
                               int64_t n_per_row, const float * imatrix) {
    rocmfpx_codec codec = *rocmfpx_codec_of(type);
    rocmfpx_steps steps = *rocmfpx_steps_best();
    codec.nearest_scale = false;
    steps.row_energy    = no_energy;
    steps.weights       = importance_alone;
    return rocmfpx_encode_rows(&codec, &steps, src, (uint8_t *) dst, nrows, n_per_row, imatrix);
}
