// Owns: turning packed rows into bands and Q8_0 rows into panel columns; layouts are drawn in dot.h.

#include "dot.h"
#include "rocmfpx-codec.h"

static const int format_bias[ROCMFPX_FORMATS] = {
    [ROCMFPX_FP4] = ROCMFP4_BIAS, [ROCMFPX_FP4_FAST] = ROCMFP4_BIAS, [ROCMFPX_FP6] = ROCMFP6_BIAS,
    [ROCMFPX_FP8] = ROCMFP8_BIAS, [ROCMFPX_FP3] = ROCMFP3_BIAS,      [ROCMFPX_FP2] = ROCMFP2_BIAS,
};

static const rocmfpx_codec * const format_codec[ROCMFPX_FORMATS] = {
    [ROCMFPX_FP4] = &rocmfpx_codec_rocmfp4, [ROCMFPX_FP4_FAST] = &rocmfpx_codec_rocmfp4_fast,
    [ROCMFPX_FP6] = &rocmfpx_codec_rocmfp6, [ROCMFPX_FP8] = &rocmfpx_codec_rocmfp8,
    [ROCMFPX_FP3] = &rocmfpx_codec_rocmfp3, [ROCMFPX_FP2] = &rocmfpx_codec_rocmfp2,
};

int rocmfpx_format_of(int type) {
    for (int f = 0; f < ROCMFPX_FORMATS; ++f) {
        if (format_codec[f]->type == type) {
            return f;
        }
    }
    return -1;
}

// ORs `code` of weight i into the four-byte column of one row; columns of one row are ROCMFPX_LINE apart.
static void put_code(int format, int i, uint8_t code, uint8_t * column) {
    const int g = i / 4;
    uint8_t * byte = column + i % 4;
    switch (format) {
        case ROCMFPX_FP8:
            byte[g * ROCMFPX_LINE] = code ^ 0x80;
            break;
        case ROCMFPX_FP6: {
            const uint8_t level = code & 32 ? 31 - (code & 31) : 31 + code;
            uint8_t * triple = byte + g / 4 * 3 * ROCMFPX_LINE;
            if (g % 4 < 3) {
                triple[g % 4 * ROCMFPX_LINE] |= level;
            } else {
                for (int hi = 0; hi < 3; ++hi) {
                    triple[hi * ROCMFPX_LINE] |= (uint8_t) ((level >> (2 * hi) & 3) << 6);
                }
            }
            break;
        }
        case ROCMFPX_FP3:
            if (g < 6) {
                byte[g % 3 * ROCMFPX_LINE] |= (uint8_t) (code << (g / 3 * 3));
            } else {
                const int six = code << (g == 7 ? 3 : 0);
                for (int hi = 0; hi < 3; ++hi) {
                    byte[hi * ROCMFPX_LINE] |= (uint8_t) ((six >> (2 * hi) & 3) << 6);
                }
            }
            break;
        case ROCMFPX_FP2:
            byte[g / 4 * ROCMFPX_LINE] |= (uint8_t) (code << (g % 4 * 2));
            break;
        default:
            byte[g % 4 * ROCMFPX_LINE] |= (uint8_t) (code << (g / 4 * 4));
    }
}

void rocmfpx_pack_band(int format, const uint8_t * rows, int64_t n_blocks, uint8_t * band) {
    const rocmfpx_codec * c = format_codec[format];
    const int code_bytes = rocmfpx_code_bytes(c);
    const int n_scales = rocmfpx_scale_count(c);
    const int block_bytes = rocmfpx_block_bytes(c);
    uint8_t * scales = band + n_blocks * code_bytes * ROCMFPX_BAND;

    memset(band, 0, (size_t) (n_blocks * code_bytes * ROCMFPX_BAND));
    for (int r = 0; r < ROCMFPX_BAND; ++r) {
        for (int64_t b = 0; b < n_blocks; ++b) {
            const uint8_t * block = rows + (r * n_blocks + b) * block_bytes;
            uint8_t codes[QK_ROCMFPX];
            rocmfpx_unpack(c, block, codes);
            for (int i = 0; i < QK_ROCMFPX; ++i) {
                put_code(format, i, codes[i], band + b * code_bytes * ROCMFPX_BAND + 4 * r);
            }
            for (int s = 0; s < n_scales; ++s) {
                const uint8_t scale = block[code_bytes + s];
                scales[(b * n_scales + s) * ROCMFPX_BAND + r] = scale <= ROCMFPX_SCALE_MAX ? scale : 0;
            }
        }
    }
}

// IEEE half to float, exact.
static float half_to_float(const uint8_t * bytes) {
    const uint32_t half = (uint32_t) bytes[0] | (uint32_t) bytes[1] << 8;
    const uint32_t sign = (half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 31;
    if (exponent == 0) {
        const float magnitude = (float) (half & 1023) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    const uint32_t bits = sign | (exponent == 31 ? 255u << 23 : (exponent + 112) << 23) | (half & 1023) << 13;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

void rocmfpx_pack_column(int format, const uint8_t * q8_0, int64_t n_blocks, rocmfpx_act * column, int width) {
    const int bias = format_bias[format];
    const bool two = format_codec[format]->group == 16;
    for (int64_t b = 0; b < n_blocks; ++b) {
        const uint8_t * block = q8_0 + b * ROCMFPX_Q8_0_BYTES;
        rocmfpx_act * act = column + b * width;
        memcpy(act->q, block + 2, QK_ROCMFPX);
        int sums[2] = {0, 0};
        for (int i = 0; i < 16; ++i) {
            sums[0] += act->q[i];
            sums[1] += act->q[i + 16];
        }
        act->start[0] = -bias * (two ? sums[0] : sums[0] + sums[1]);
        act->start[1] = -bias * sums[1];
        act->d = 128.0f * half_to_float(block);
        act->unused = 0;
    }
}
