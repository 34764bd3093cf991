// Type 103, Q8_0_ROCMFPX: int8 levels. The encoder stays within +-127; -128 decodes as written.

#include "rocmfpx-codec.h"

static int8_t fp8_level(uint8_t code) {
    return (int8_t) code;
}

// Halves away from zero.
static uint8_t fp8_code(float q) {
    const float clipped = fmaxf(fminf(q, 127.0f), -127.0f);
    return (uint8_t) (int8_t) roundf(clipped);
}

const rocmfpx_codec rocmfpx_codec_rocmfp8 = {
    .rule          = ROCMFPX_RULE_FP8,
    .type          = 103,
    .bits          = 8,
    .group         = 32,
    .top           = 127,
    .nearest_scale = true,
    .scale_first   = true,
    .code          = fp8_code,
    .level         = fp8_level,
};

ROCMFPX_DEFINE(rocmfp8)
