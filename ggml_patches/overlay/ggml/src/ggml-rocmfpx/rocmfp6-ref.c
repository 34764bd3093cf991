// Type 102, Q6_0_ROCMFPX: sign and magnitude 0..31. Code 32, a negative zero, decodes to +0.

#include "rocmfpx-codec.h"

static int8_t fp6_level(uint8_t code) {
    const int8_t magnitude = code & 31;
    return code & 32 ? -magnitude : magnitude;
}

// Halves away from zero; a - whole is exact, a + 0.5f would not be.
static uint8_t fp6_code(float q) {
    const float a           = fminf(fabsf(q), 31.0f);
    const float whole       = truncf(a);
    const uint8_t magnitude = (uint8_t) whole + (a - whole >= 0.5f ? 1 : 0);
    return magnitude != 0 && q < 0.0f ? magnitude | 32 : magnitude;
}

const rocmfpx_codec rocmfpx_codec_rocmfp6 = {
    .rule  = ROCMFPX_RULE_FP6,
    .type  = 102,
    .bits  = 6,
    .group = 16,
    .top   = 31,
    .code  = fp6_code,
    .level = fp6_level,
};

ROCMFPX_DEFINE(rocmfp6)
