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

static uint32_t load(const uint8_t * bytes, int n) {
    uint32_t v = 0;
    for (int i = 0; i < n; ++i) {
        v |= (uint32_t) bytes[i] << (8 * i);
    }
    return v;
}

// Four codes of 2, 3 or 6 bits to four bytes.
static uint32_t spread2(uint32_t v) {
    v = (v | v << 12) & 0x000f000f;
    return (v | v << 6) & 0x03030303;
}

static uint32_t spread3(uint32_t v) {
    v = (v | v << 10) & 0x003f003f;
    return (v | v << 5) & 0x07070707;
}

static uint32_t spread6(uint32_t v) {
    v = (v & 0xfff) | (v & 0xfff000) << 4;
    return (v & 0x003f003f) | (v & 0x0fc00fc0) << 2;
}

// Four sign-and-magnitude bytes to level + 31, where 31 - m == 31 ^ m.
static uint32_t bias6(uint32_t code) {
    const uint32_t negative = (code >> 5 & 0x01010101) * 31;
    return ((code & 0x1f1f1f1f) ^ negative) + (0x1f1f1f1f & ~negative);
}

// Bits 2i, 2i + 1 of four bytes to their two high bits.
static uint32_t hi_field(uint32_t code, int i) {
    return (code >> (2 * i) & 0x03030303) << 6;
}

// The four-byte column of one row in each line of one block.
static void pack_block(int format, const uint8_t * x, uint32_t * column) {
    switch (format) {
        case ROCMFPX_FP8:
            for (int g = 0; g < 8; ++g) {
                column[g] = load(x + 4 * g, 4) ^ 0x80808080;
            }
            break;
        case ROCMFPX_FP6:
            for (int t = 0; t < 2; ++t) {
                const uint8_t * twelve = x + 12 * t;
                const uint32_t last    = bias6(spread6(load(twelve + 9, 3)));
                for (int i = 0; i < 3; ++i) {
                    column[3 * t + i] = bias6(spread6(load(twelve + 3 * i, 3))) | hi_field(last, i);
                }
            }
            break;
        case ROCMFPX_FP3: {
            uint32_t code[8];
            for (int g = 0; g < 8; ++g) {
                code[g] = spread3(load(x + g / 2 * 3, 3) >> (g % 2 * 12) & 0xfff);
            }
            const uint32_t last = code[6] | code[7] << 3;
            for (int i = 0; i < 3; ++i) {
                column[i] = code[i] | code[i + 3] << 3 | hi_field(last, i);
            }
            break;
        }
        case ROCMFPX_FP2:
            for (int v = 0; v < 2; ++v) {
                column[v] = 0;
                for (int i = 0; i < 4; ++i) {
                    column[v] |= spread2(x[4 * v + i]) << (2 * i);
                }
            }
            break;
        default: // both keep weights 16 apart in the nibbles of one byte
            for (int v = 0; v < 4; ++v) {
                column[v] = load(x + 4 * v, 4);
            }
    }
}

// One block of every row; the rows' blocks are `stride` bytes apart.
static void pack_blocks(int format, const uint8_t * blocks, int64_t stride, uint8_t * scales, uint8_t * lines) {
    const rocmfpx_codec * c = format_codec[format];
    const int code_bytes    = rocmfpx_code_bytes(c);
    const int n_scales      = rocmfpx_scale_count(c);
    for (int r = 0; r < ROCMFPX_BAND; ++r) {
        const uint8_t * block = blocks + r * stride;
        uint32_t column[8];
        pack_block(format, block, column);
        for (int i = 0; i < code_bytes * ROCMFPX_BAND / ROCMFPX_LINE; ++i) {
            memcpy(lines + i * ROCMFPX_LINE + 4 * r, &column[i], sizeof(column[i]));
        }
        for (int s = 0; s < n_scales; ++s) {
            const uint8_t scale          = block[code_bytes + s];
            scales[s * ROCMFPX_BAND + r] = scale <= ROCMFPX_SCALE_MAX ? scale : 0;
        }
    }
}

void rocmfpx_pack_band(int format, const uint8_t * rows, int64_t n_blocks, uint8_t * band) {
    const rocmfpx_codec * c = format_codec[format];
    const int block_bytes   = rocmfpx_block_bytes(c);
    const int line_bytes    = rocmfpx_code_bytes(c) * ROCMFPX_BAND;
    const int scale_bytes   = rocmfpx_scale_count(c) * ROCMFPX_BAND;
    for (int64_t first = 0; first < n_blocks; first += ROCMFPX_CHUNK) {
        const int n = n_blocks - first < ROCMFPX_CHUNK ? (int) (n_blocks - first) : ROCMFPX_CHUNK;
        for (int b = 0; b < n; ++b) {
            pack_blocks(format, rows + (first + b) * block_bytes, n_blocks * block_bytes, band + b * scale_bytes,
                        band + n * scale_bytes + b * line_bytes);
        }
        band += n * (scale_bytes + line_bytes);
    }
}

// IEEE half to float, exact.
static float half_to_float(const uint8_t * bytes) {
    const uint32_t half     = (uint32_t) bytes[0] | (uint32_t) bytes[1] << 8;
    const uint32_t sign     = (half & 0x8000) << 16;
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
        rocmfpx_act * act     = column + b * width;
        memcpy(act->q, block + 2, QK_ROCMFPX);
        int sums[2] = {0, 0};
        for (int i = 0; i < 16; ++i) {
            sums[0] += act->q[i];
            sums[1] += act->q[i + 16];
        }
        act->start[0] = -bias * (two ? sums[0] : sums[0] + sums[1]);
        act->start[1] = -bias * sums[1];
        act->d        = 128.0f * half_to_float(block);
        act->unused   = 0;
    }
}
