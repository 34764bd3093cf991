// Owns: the scale table, packed codes, and the scalar reference of decoding, validating and multiplying.

#include "rocmfpx-codec.h"

// Every scale is an integer over 2048. The reciprocal is rounded once, by the compiler, to nearest even.
#define EXPONENT(e)   ((e) >> 3)
#define MANTISSA(e)   ((e) & 7)
#define SCALE(e)      ((float) (EXPONENT(e) ? (8 + MANTISSA(e)) << EXPONENT(e) : MANTISSA(e) << 1) / 2048.0f)
#define RECIPROCAL(e) ((e) ? 1.0f / SCALE((e) ? (e) : 1) : 0.0f)
#define FOUR(F, e)    F(e), F((e) + 1), F((e) + 2), F((e) + 3)
#define SIXTEEN(F, e) FOUR(F, e), FOUR(F, (e) + 4), FOUR(F, (e) + 8), FOUR(F, (e) + 12)
#define VALID(F)                                                                                                       \
    SIXTEEN(F, 0), SIXTEEN(F, 16), SIXTEEN(F, 32), SIXTEEN(F, 48), SIXTEEN(F, 64), SIXTEEN(F, 80), SIXTEEN(F, 96),     \
        FOUR(F, 112), FOUR(F, 116), FOUR(F, 120), F(124), F(125), F(126)

const float rocmfpx_scale[ROCMFPX_SCALE_TABLE]      = {VALID(SCALE)};
const float rocmfpx_reciprocal[ROCMFPX_SCALE_TABLE] = {VALID(RECIPROCAL)};

const rocmfpx_codec * rocmfpx_codec_of(int type) {
    switch (type) {
#define ROCMFPX_CASE_CODEC(id, suffix, stem, name, bytes)                                                              \
    case id:                                                                                                           \
        return &rocmfpx_codec_##stem;
        ROCMFPX_TYPES(ROCMFPX_CASE_CODEC)
        default:
            return NULL;
    }
}

// The weight whose code is at place i of the stream.
static inline int stream_weight(const rocmfpx_codec * c, int i) {
    return c->nibble_halves ? i / 2 + i % 2 * 16 : i;
}

// Eight codes fill a whole number of bytes: as many as a code has bits.
void rocmfpx_pack(const rocmfpx_codec * c, const uint8_t * codes, uint8_t * packed) {
    for (int first = 0; first < QK_ROCMFPX; first += 8) {
        uint64_t word = 0;
        for (int i = 0; i < 8; ++i) {
            word |= (uint64_t) codes[stream_weight(c, first + i)] << i * c->bits;
        }
        for (int i = 0; i < c->bits; ++i) {
            *packed++ = (uint8_t) (word >> 8 * i);
        }
    }
}

void rocmfpx_unpack(const rocmfpx_codec * c, const uint8_t * packed, uint8_t * codes) {
    const uint64_t mask = (1u << c->bits) - 1;
    for (int first = 0; first < QK_ROCMFPX; first += 8) {
        uint64_t word = 0;
        for (int i = 0; i < c->bits; ++i) {
            word |= (uint64_t) *packed++ << 8 * i;
        }
        for (int i = 0; i < 8; ++i) {
            codes[stream_weight(c, first + i)] = (uint8_t) (word >> i * c->bits & mask);
        }
    }
}

void rocmfpx_block_levels(const rocmfpx_codec * c, const uint8_t * block, int8_t * levels) {
    uint8_t codes[QK_ROCMFPX];
    rocmfpx_unpack(c, block, codes);
    for (int i = 0; i < QK_ROCMFPX; ++i) {
        levels[i] = c->level(codes[i]);
    }
}

void rocmfpx_decode_row(const rocmfpx_codec * c, const uint8_t * x, float * y, int64_t k) {
    for (int64_t b = 0; b < k / QK_ROCMFPX; ++b) {
        const uint8_t * block  = x + b * rocmfpx_block_bytes(c);
        const uint8_t * scales = block + rocmfpx_code_bytes(c);
        int8_t levels[QK_ROCMFPX];
        rocmfpx_block_levels(c, block, levels);
        for (int i = 0; i < QK_ROCMFPX; ++i) {
            y[b * QK_ROCMFPX + i] = (float) levels[i] * rocmfpx_scale[scales[i / c->group]];
        }
    }
}

bool rocmfpx_validate(const rocmfpx_codec * c, const uint8_t * data, size_t nbytes) {
    const size_t block_bytes = (size_t) rocmfpx_block_bytes(c);
    if (nbytes % block_bytes != 0) {
        return false;
    }
    for (size_t at = (size_t) rocmfpx_code_bytes(c); at < nbytes; at += block_bytes) {
        for (int g = 0; g < rocmfpx_scale_count(c); ++g) {
            if (data[at + (size_t) g] > ROCMFPX_SCALE_MAX) {
                return false;
            }
        }
    }
    return true;
}

// IEEE half to float, exact. Subnormals: mantissa times 2^-24.
static float half_to_float(const uint8_t * bytes) {
    const uint32_t half     = (uint32_t) bytes[0] | (uint32_t) bytes[1] << 8;
    const uint32_t exponent = half >> 10 & 31;
    const uint32_t mantissa = half & 1023;
    const uint32_t sign     = (half & 0x8000) << 16;
    if (exponent == 0) {
        const float magnitude = (float) mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    const uint32_t bits = sign | (exponent == 31 ? 255u << 23 : (exponent + 112) << 23) | mantissa << 13;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// Integer sums are exact; the order of the few float operations is part of the format.
float rocmfpx_dot_q8_0(const rocmfpx_codec * c, int64_t n, const uint8_t * x, const uint8_t * y) {
    float sum = 0.0f;
    for (int64_t b = 0; b < n / QK_ROCMFPX; ++b) {
        const uint8_t * block  = x + b * rocmfpx_block_bytes(c);
        const uint8_t * scales = block + rocmfpx_code_bytes(c);
        const uint8_t * act    = y + b * ROCMFPX_Q8_0_BYTES;
        const float act_scale  = half_to_float(act);
        const bool two         = c->group == 16;

        int8_t levels[QK_ROCMFPX];
        rocmfpx_block_levels(c, block, levels);
        int32_t sums[2] = {0, 0};
        for (int i = 0; i < QK_ROCMFPX; ++i) {
            sums[two ? i / 16 : 0] += levels[i] * (int8_t) act[2 + i];
        }

        const float s0 = rocmfpx_scale[scales[0]];
        const float s1 = two ? rocmfpx_scale[scales[1]] : 0.0f;
        if (!two) {
            sum += s0 * act_scale * (float) sums[0];
        } else if (c->scale_first) {
            sum += s0 * act_scale * (float) sums[0] + s1 * act_scale * (float) sums[1];
        } else {
            sum += act_scale * (s0 * (float) sums[0] + s1 * (float) sums[1]);
        }
    }
    return sum;
}
