// Type 104, Q3_0_ROCMFPX: sign and magnitudes 0, 1, 2, 4.

#include "rocmfpx-codec.h"

static const int8_t levels[8] = ROCMFP3_LEVELS;

static int8_t fp3_level(uint8_t code) {
    return levels[code];
}

// Exact midpoints go to the smaller magnitude; the sign is set only on a non-zero one.
static uint8_t fp3_code(float q) {
    const float a           = fabsf(q);
    const uint8_t magnitude = a <= 0.5f ? 0 : a <= 1.5f ? 1 : a <= 3.0f ? 2 : 3;
    return magnitude != 0 && q < 0.0f ? magnitude | 4 : magnitude;
}

const rocmfpx_codec rocmfpx_codec_rocmfp3 = {
    .rule  = ROCMFPX_RULE_FP3,
    .type  = 104,
    .bits  = 3,
    .group = 16,
    .top   = 4,
    .code  = fp3_code,
    .level = fp3_level,
};

ROCMFPX_DEFINE(rocmfp3)
