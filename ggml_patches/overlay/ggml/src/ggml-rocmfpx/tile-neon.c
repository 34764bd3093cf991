// Owns: one band times a panel of columns with NEON and the dot-product extension; layouts are drawn in dot.h.
// A quarter of a band, four rows, lies in the lanes. Levels plus bias fit a signed byte except in fp8, which is
// signed already and does not use the panel's start.

#include "dot.h"

#if defined(__aarch64__) && defined(__GNUC__)

#include <arm_neon.h>

#define NEON   __attribute__((target("arch=armv8.2-a+dotprod")))
#define INLINE NEON static inline __attribute__((always_inline))

#define ROWS    4
#define COLUMNS 8

INLINE uint8x16_t line(const uint8_t * codes, int i) {
    return vld1q_u8(codes + i * ROCMFPX_LINE);
}

INLINE uint8x16_t masked(uint8x16_t x, int shift, uint8_t mask) {
    return vandq_u8(vshlq_u8(x, vdupq_n_s8((int8_t) -shift)), vdupq_n_u8(mask));
}

// The fields `hi` of three lines as one six-bit code.
INLINE uint8x16_t join_hi(uint8x16_t x, uint8x16_t y, uint8x16_t z) {
    return vorrq_u8(vorrq_u8(masked(x, 6, 0x03), masked(y, 4, 0x0c)), masked(z, 2, 0x30));
}

// w[g] = level + bias of group g; fp8: the level itself.
INLINE void unpack_fp2(const uint8_t * codes, uint8x16_t * w) {
    for (int g = 0; g < 8; ++g) {
        w[g] = masked(line(codes, g / 4), g % 4 * 2, 3);
    }
}

INLINE void unpack_fp3(const uint8_t * codes, uint8x16_t * w) {
    static const uint8_t by_code[16] = {4, 5, 6, 8, 4, 3, 2, 0};
    const uint8x16_t level           = vld1q_u8(by_code);
    uint8x16_t x[3];
    for (int v = 0; v < 3; ++v) {
        x[v]     = line(codes, v);
        w[v]     = vqtbl1q_u8(level, masked(x[v], 0, 7));
        w[v + 3] = vqtbl1q_u8(level, masked(x[v], 3, 7));
    }
    const uint8x16_t hi = join_hi(x[0], x[1], x[2]);
    w[6]                = vqtbl1q_u8(level, masked(hi, 0, 7));
    w[7]                = vqtbl1q_u8(level, masked(hi, 3, 7));
}

INLINE void unpack_fp4(const uint8_t * codes, uint8x16_t * w) {
    static const uint8_t by_code[16] = {10, 11, 12, 13, 14, 16, 18, 20, 10, 9, 8, 7, 6, 4, 2, 0};
    const uint8x16_t level           = vld1q_u8(by_code);
    for (int v = 0; v < 4; ++v) {
        const uint8x16_t x = line(codes, v);
        w[v]               = vqtbl1q_u8(level, masked(x, 0, 15));
        w[v + 4]           = vqtbl1q_u8(level, vshrq_n_u8(x, 4));
    }
}

INLINE void unpack_fp6(const uint8_t * codes, uint8x16_t * w) {
    for (int t = 0; t < 2; ++t) {
        const uint8x16_t x = line(codes, 3 * t);
        const uint8x16_t y = line(codes, 3 * t + 1);
        const uint8x16_t z = line(codes, 3 * t + 2);
        w[4 * t + 0]       = masked(x, 0, 0x3f);
        w[4 * t + 1]       = masked(y, 0, 0x3f);
        w[4 * t + 2]       = masked(z, 0, 0x3f);
        w[4 * t + 3]       = join_hi(x, y, z);
    }
}

INLINE void unpack_fp8(const uint8_t * codes, uint8x16_t * w) {
    for (int g = 0; g < 8; ++g) {
        w[g] = veorq_u8(line(codes, g), vdupq_n_u8(0x80));
    }
}

INLINE float32x4_t scales(const uint8_t * bytes) {
    uint32_t four;
    __builtin_memcpy(&four, bytes, sizeof(four));
    const uint16x4_t words = vget_low_u16(vmovl_u8(vcreate_u8(four)));
    return vcvt_f32_f16(vreinterpret_f16_u16(vshl_n_u16(words, 7)));
}

typedef struct {
    int code_bytes; // of one block of one row
    bool starts;    // sums start at the panel's start
    bool two_scales;
    bool scale_first;
    void (*unpack)(const uint8_t * codes, uint8x16_t * w);
} banded;

INLINE int32x4_t dot16(int32x4_t sum, const uint8x16_t * w, const int8_t * q) {
    const int8x16_t a = vld1q_s8(q);
    sum               = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[0]), a, 0);
    sum               = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[1]), a, 1);
    sum               = vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[2]), a, 2);
    return vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w[3]), a, 3);
}

INLINE float32x4_t add_block(const banded * f, float32x4_t sum, const uint8x16_t * w, float32x4_t s0, float32x4_t s1,
                             const rocmfpx_act * a) {
    const int32x4_t n0 = dot16(vdupq_n_s32(f->starts ? a->start[0] : 0), w, a->q);
    if (!f->two_scales) {
        const float32x4_t i = vcvtq_f32_s32(dot16(n0, w + 4, a->q + 16));
        return vaddq_f32(sum, vmulq_f32(vmulq_n_f32(s0, a->d), i));
    }
    const float32x4_t i0 = vcvtq_f32_s32(n0);
    const float32x4_t i1 = vcvtq_f32_s32(dot16(vdupq_n_s32(a->start[1]), w + 4, a->q + 16));
    if (f->scale_first) {
        return vaddq_f32(sum, vaddq_f32(vmulq_f32(vmulq_n_f32(s0, a->d), i0), vmulq_f32(vmulq_n_f32(s1, a->d), i1)));
    }
    return vaddq_f32(sum, vmulq_n_f32(vaddq_f32(vmulq_f32(s0, i0), vmulq_f32(s1, i1)), a->d));
}

// Rows [row, row + parts * ROWS) times n_cols columns.
INLINE void columns(const banded * f, int64_t n_blocks, const uint8_t * band, int row, const int parts,
                    const rocmfpx_act * panel, int width, const int n_cols, float * out) {
    const int scale_bytes = f->two_scales ? 2 * ROCMFPX_BAND : ROCMFPX_BAND;
    float32x4_t sum[ROCMFPX_BAND / ROWS][COLUMNS];
#pragma GCC unroll 8
    for (int i = 0; i < parts * n_cols; ++i) {
        sum[i / n_cols][i % n_cols] = vdupq_n_f32(0.0f);
    }
    for (int64_t left = n_blocks; left > 0; left -= ROCMFPX_CHUNK) {
        const int n           = left < ROCMFPX_CHUNK ? (int) left : ROCMFPX_CHUNK;
        const uint8_t * scale = band + row;
        const uint8_t * codes = band + n * scale_bytes + 4 * row;
        band += n * (scale_bytes + f->code_bytes * ROCMFPX_BAND);
        for (int b = 0; b < n; ++b) {
#pragma GCC unroll 4
            for (int part = 0; part < parts; ++part) {
                uint8x16_t w[8];
                f->unpack(codes + part * 4 * ROWS, w);
                const float32x4_t s0 = scales(scale + part * ROWS);
                const float32x4_t s1 = f->two_scales ? scales(scale + ROCMFPX_BAND + part * ROWS) : s0;
#pragma GCC unroll 8
                for (int c = 0; c < n_cols; ++c) {
                    sum[part][c] = add_block(f, sum[part][c], w, s0, s1, panel + c);
                }
            }
            codes += f->code_bytes * ROCMFPX_BAND;
            scale += scale_bytes;
            panel += width;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < parts * n_cols; ++i) {
        vst1q_f32(out + i % n_cols * ROCMFPX_BAND + row + i / n_cols * ROWS, sum[i / n_cols][i % n_cols]);
    }
}

// Few columns read the band once, as decoding from memory must; more keep their sums in registers instead.
#define WHOLE_BAND(n)                                                                                                  \
    case n:                                                                                                            \
        columns(&f, n_blocks, band, 0, ROCMFPX_BAND / ROWS, panel, width, n, out);                                     \
        return;
#define PART_OF_BAND(n)                                                                                                \
    for (int row = 0; row < ROCMFPX_BAND; row += ROWS) {                                                               \
        columns(&f, n_blocks, band, row, 1, panel, width, n, out);                                                     \
    }

#define DEFINE_TILE(stem, bytes, starts, two, first_scale)                                                             \
    NEON static void tile_##stem(int64_t n_blocks, const uint8_t * band, const rocmfpx_act * panel, int width,         \
                                 int n_cols, float * out) {                                                            \
        const banded f = {bytes, starts, two, first_scale, unpack_##stem};                                             \
        for (; n_cols > 0; n_cols -= COLUMNS, panel += COLUMNS, out += COLUMNS * ROCMFPX_BAND) {                       \
            switch (n_cols) {                                                                                          \
                WHOLE_BAND(1)                                                                                          \
                WHOLE_BAND(2)                                                                                          \
                case 3:                                                                                                \
                    PART_OF_BAND(3) return;                                                                            \
                case 4:                                                                                                \
                    PART_OF_BAND(4) return;                                                                            \
                case 5:                                                                                                \
                    PART_OF_BAND(5) return;                                                                            \
                case 6:                                                                                                \
                    PART_OF_BAND(6) return;                                                                            \
                case 7:                                                                                                \
                    PART_OF_BAND(7) return;                                                                            \
                default:                                                                                               \
                    PART_OF_BAND(COLUMNS)                                                                              \
            }                                                                                                          \
        }                                                                                                              \
    }

#define unpack_fp4_fast unpack_fp4
DEFINE_TILE(fp4, 16, true, true, true)
DEFINE_TILE(fp4_fast, 16, true, false, true)
DEFINE_TILE(fp6, 24, true, true, false)
DEFINE_TILE(fp8, 32, false, false, true)
DEFINE_TILE(fp3, 12, true, true, false)
DEFINE_TILE(fp2, 8, true, true, false)

const rocmfpx_tile rocmfpx_tile_neon[ROCMFPX_FORMATS] = {tile_fp4, tile_fp4_fast, tile_fp6,
                                                         tile_fp8, tile_fp3,      tile_fp2};
#endif
