// Owns: the scalar reference of encoding: importance weights, the choice of a scale, the loop over rows.
// Deterministic: plain float32 in index order. The fast engines are tested against these functions.

#include "rocmfpx-codec.h"

#include <float.h>

// k counts non-finite weights too. In double only where the float sum would overflow.
float rocmfpx_row_energy(const float * x, int64_t k) {
    float sum     = 0.0f;
    bool overflow = false;
    for (int64_t i = 0; i < k && !overflow; ++i) {
        if (isfinite(x[i])) {
            const float square = x[i] * x[i];
            overflow           = isinf(square) || sum > FLT_MAX - square;
            sum += overflow ? 0.0f : square;
        }
    }
    if (!overflow) {
        return sum / (float) k;
    }
    double wide = 0.0;
    for (int64_t i = 0; i < k; ++i) {
        if (isfinite(x[i])) {
            wide += (double) x[i] * (double) x[i];
        }
    }
    const double mean = wide / (double) k;
    return (float) (mean < (double) FLT_MAX ? mean : (double) FLT_MAX);
}

void rocmfpx_weights(const float * x, const float * qw, float energy, int n, float * w) {
    for (int i = 0; i < n; ++i) {
        if (!isfinite(x[i]) || !isfinite(qw[i]) || !(qw[i] > 0.0f)) {
            w[i] = 0.0f;
            continue;
        }
        const float local  = energy + x[i] * x[i];
        const float weight = isfinite(local) ? qw[i] * sqrtf(local) : FLT_MAX;
        w[i]               = isfinite(weight) ? weight : FLT_MAX;
    }
}

float rocmfpx_group_max(const float * x, int n) {
    float max = 0.0f;
    for (int i = 0; i < n; ++i) {
        if (isfinite(x[i])) {
            max = fmaxf(max, fabsf(x[i]));
        }
    }
    return max;
}

// Float32 differences on purpose: for large targets many round to the same value and the smallest byte wins.
int rocmfpx_nearest_scale(float target) {
    if (!(target > 0.0f)) {
        return 0;
    }
    int best = 1;
    for (int e = 2; e <= ROCMFPX_SCALE_MAX; ++e) {
        if (fabsf(rocmfpx_scale[e] - target) < fabsf(rocmfpx_scale[best] - target)) {
            best = e;
        }
    }
    return best;
}

// Sum of weighted squared errors of a group under scale byte e, in index order. Terms are not negative, so
// the sum may stop once it is above `limit`: it cannot fall again.
static float group_error(const rocmfpx_codec * c, const float * x, const float * w, int e, float limit) {
    const float scale      = rocmfpx_scale[e];
    const float reciprocal = rocmfpx_reciprocal[e];
    float sum              = 0.0f;
    for (int i = 0; i < c->group && !(sum > limit); ++i) {
        if (isfinite(x[i])) {
            const float d = x[i] - (float) c->level(c->code(x[i] * reciprocal)) * scale;
            sum += w ? w[i] * d * d : d * d;
        }
    }
    return sum;
}

// The byte whose scale is next below max/top: where the search starts. Any byte would do; a good first
// guess ends the other sums early.
static int first_guess(const rocmfpx_codec * c, float max) {
    int e = 1;
    while (e < ROCMFPX_SCALE_MAX && rocmfpx_scale[e + 1] * (float) c->top <= max) {
        ++e;
    }
    return e;
}

int rocmfpx_fit_ref(const rocmfpx_codec * c, const float * x, const float * w) {
    const float max = rocmfpx_group_max(x, c->group);
    if (c->nearest_scale && !w) {
        return rocmfpx_nearest_scale(max / (float) c->top);
    }
    if (max == 0.0f) {
        return 0;
    }
    const int guess = first_guess(c, max);
    float least     = INFINITY;
    int best        = c->refuses_overflow ? 0 : 1;
    for (int i = 0; i <= ROCMFPX_SCALE_MAX; ++i) {
        const int e         = i == 0 ? guess : i;
        const float error   = group_error(c, x, w, e, least);
        const bool eligible = !c->refuses_overflow || error < FLT_MAX;
        if (eligible && (error < least || (error == least && e < best))) {
            least = error;
            best  = e;
        }
    }
    return best;
}

void rocmfpx_codes_ref(const rocmfpx_codec * c, const float * x, int scale_byte, uint8_t * codes) {
    const uint8_t zero     = c->code(0.0f);
    const float reciprocal = rocmfpx_reciprocal[scale_byte];
    for (int i = 0; i < c->group; ++i) {
        codes[i] = scale_byte != 0 && isfinite(x[i]) ? c->code(x[i] * reciprocal) : zero;
    }
}

const rocmfpx_steps rocmfpx_steps_ref = {
    .row_energy = rocmfpx_row_energy,
    .weights    = rocmfpx_weights,
    .fit        = rocmfpx_fit_ref,
    .codes      = rocmfpx_codes_ref,
};

static void encode_block(const rocmfpx_codec * c, const rocmfpx_steps * steps, const float * x, const float * w,
                         uint8_t * y) {
    uint8_t codes[QK_ROCMFPX];
    uint8_t * scales = y + rocmfpx_code_bytes(c);
    for (int g = 0; g < rocmfpx_scale_count(c); ++g) {
        const int at = g * c->group;
        scales[g]    = (uint8_t) steps->fit(c, x + at, w ? w + at : NULL);
        steps->codes(c, x + at, scales[g], codes + at);
    }
    rocmfpx_pack(c, codes, y);
}

size_t rocmfpx_encode_rows(const rocmfpx_codec * c, const rocmfpx_steps * steps, const float * x, uint8_t * y,
                           int64_t nrows, int64_t k, const float * qw) {
    uint8_t * out = y;
    for (int64_t row = 0; row < nrows; ++row, x += k) {
        const float energy = qw ? steps->row_energy(x, k) : 0.0f;
        for (int64_t at = 0; at < k; at += QK_ROCMFPX) {
            float w[QK_ROCMFPX];
            if (qw) {
                steps->weights(x + at, qw + at, energy, QK_ROCMFPX, w);
            }
            encode_block(c, steps, x + at, qw ? w : NULL, out);
            out += rocmfpx_block_bytes(c);
        }
    }
    return (size_t) (out - y);
}
