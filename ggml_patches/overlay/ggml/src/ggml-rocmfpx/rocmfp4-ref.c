// Types 100 and 101, Q4_0_ROCMFP4 and Q4_0_ROCMFP4_FAST: sign and magnitudes 0, 1, 2, 3, 4, 6, 8, 10; a
// scale for each half of the block, or one for all of it.

#include "rocmfpx-codec.h"

static const int8_t levels[16] = ROCMFP4_LEVELS;

static int8_t fp4_level(uint8_t code) {
    return levels[code];
}

// Exact midpoints go to the smaller magnitude; the sign is set only on a non-zero one.
static uint8_t fp4_code(float q) {
    static const float limits[7] = {0.5f, 1.5f, 2.5f, 3.5f, 5.0f, 7.0f, 9.0f};

    const float a     = fabsf(q);
    uint8_t magnitude = 0;
    while (magnitude < 7 && a > limits[magnitude]) {
        ++magnitude;
    }
    return magnitude != 0 && q < 0.0f ? magnitude | 8 : magnitude;
}

const rocmfpx_codec rocmfpx_codec_rocmfp4 = {
    .rule             = ROCMFPX_RULE_FP4,
    .type             = 100,
    .bits             = 4,
    .group            = 16,
    .top              = 10,
    .nibble_halves    = true,
    .refuses_overflow = true,
    .scale_first      = true,
    .code             = fp4_code,
    .level            = fp4_level,
};

const rocmfpx_codec rocmfpx_codec_rocmfp4_fast = {
    .rule             = ROCMFPX_RULE_FP4,
    .type             = 101,
    .bits             = 4,
    .group            = 32,
    .top              = 10,
    .nibble_halves    = true,
    .refuses_overflow = true,
    .scale_first      = true,
    .code             = fp4_code,
    .level            = fp4_level,
};

ROCMFPX_DEFINE(rocmfp4)
ROCMFPX_DEFINE(rocmfp4_fast)
