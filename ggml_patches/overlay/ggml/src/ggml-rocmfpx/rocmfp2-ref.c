// Type 107, Q2_0_ROCMFP2: levels -1, 0, 1, 2.

#include "rocmfpx-codec.h"

static const int8_t levels[4] = ROCMFP2_LEVELS;

static int8_t fp2_level(uint8_t code) {
    return levels[code];
}

// The distances are compared as rounded floats: once |q| is so large that adding a level no longer changes
// it, all four tie and code 0 wins whatever the sign. Thresholds on q would not reproduce that.
static uint8_t fp2_code(float q) {
    uint8_t code  = 0;
    float nearest = fabsf(q - (float) levels[0]);
    for (uint8_t i = 1; i < 4; ++i) {
        const float distance = fabsf(q - (float) levels[i]);
        if (distance < nearest) {
            nearest = distance;
            code    = i;
        }
    }
    return code;
}

const rocmfpx_codec rocmfpx_codec_rocmfp2 = {
    .rule  = ROCMFPX_RULE_FP2,
    .type  = 107,
    .bits  = 2,
    .group = 16,
    .top   = 2,
    .code  = fp2_code,
    .level = fp2_level,
};

ROCMFPX_DEFINE(rocmfp2)
