#pragma once

// Owns: how the matrix-vector kernels turn the codes of a block into operands of dp4a. One source for the two kinds
// of byte permute: selectors in nibbles (NVIDIA PRMT) and in bytes (AMD v_perm_b32). Each instruction has a plain C
// body beside it, so that a host runs every step over every code: test-lucebox-permute.cpp.
// Refuses: memory and scales. Compiles as plain C++.
//
// Words of a block: little-endian, `words` of them, starting at its first byte. Layouts are in ggml-rocmfpx.h.
// Activations are put in the order that decoding gives for free ("arranged"); sums of products do not see the order.

#include "ggml-rocmfpx.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__) || defined(__HIP__)
#include "common.cuh"
#define ROCMFPX_BOTH           static __host__ __device__ __forceinline__
#define ROCMFPX_BOTH_CONSTEXPR static constexpr __host__ __device__ __forceinline__
#define ROCMFPX_UNROLL         _Pragma("unroll")
#else
#define ROCMFPX_BOTH           static inline
#define ROCMFPX_BOTH_CONSTEXPR static constexpr inline
#define ROCMFPX_UNROLL
#endif

enum rocmfpx_selector { ROCMFPX_NIBBLES, ROCMFPX_BYTES };

#if defined(GGML_USE_HIP)
static constexpr rocmfpx_selector rocmfpx_native = ROCMFPX_BYTES;
#else
static constexpr rocmfpx_selector rocmfpx_native = ROCMFPX_NIBBLES;
#endif

ROCMFPX_BOTH_CONSTEXPR int rocmfpx_code_words(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q2_0_ROCMFP2:
            return 2;
        case GGML_TYPE_Q3_0_ROCMFPX:
            return 3;
        case GGML_TYPE_Q6_0_ROCMFPX:
            return 6;
        case GGML_TYPE_Q8_0_ROCMFPX:
            return 8;
        default:
            return 4;
    }
}

ROCMFPX_BOTH_CONSTEXPR int rocmfpx_scales(ggml_type type) {
    return type == GGML_TYPE_Q4_0_ROCMFP4_FAST || type == GGML_TYPE_Q8_0_ROCMFPX ? 1 : 2;
}

ROCMFPX_BOTH_CONSTEXPR int rocmfpx_bytes(ggml_type type) {
    return 4 * rocmfpx_code_words(type) + rocmfpx_scales(type);
}

// PRMT: nibble i of `pick` names a byte of high:low; with bit 3 set, the top bit of that byte fills the result.
ROCMFPX_BOTH uint32_t rocmfpx_prmt(uint32_t low, uint32_t high, uint32_t pick) {
#if defined(__CUDA_ARCH__) && !defined(GGML_USE_MUSA)
    uint32_t out; // not __byte_perm: it masks bit 3
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(pick));
    return out;
#else
    const uint64_t bytes = (uint64_t) high << 32 | low;
    uint32_t out         = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t nibble = pick >> 4 * i & 15;
        const uint32_t byte   = (uint32_t) (bytes >> 8 * (nibble & 7)) & 255;
        out |= (nibble < 8 ? byte : byte < 128 ? 0u : 255u) << 8 * i;
    }
    return out;
#endif
}

// v_perm_b32: byte i of `pick`, 0..7, names a byte of high:low.
ROCMFPX_BOTH uint32_t rocmfpx_perm(uint32_t low, uint32_t high, uint32_t pick) {
#if defined(__HIP_DEVICE_COMPILE__)
    return __builtin_amdgcn_perm(high, low, pick);
#else
    const uint64_t bytes = (uint64_t) high << 32 | low;
    uint32_t out         = 0;
    for (int i = 0; i < 4; ++i) {
        out |= ((uint32_t) (bytes >> 8 * (pick >> 8 * i & 7)) & 255) << 8 * i;
    }
    return out;
#endif
}

// A permute whose selector, nibbles 0..7, is known when compiling.
template <rocmfpx_selector by, uint32_t pick> ROCMFPX_BOTH uint32_t rocmfpx_pick(uint32_t low, uint32_t high) {
    if constexpr (by == ROCMFPX_NIBBLES) {
        return rocmfpx_prmt(low, high, pick);
    } else {
        return rocmfpx_perm(low, high, (pick & 15) | (pick & 0xf0) << 4 | (pick & 0xf00) << 8 | (pick & 0xf000) << 12);
    }
}

// The low word of high:low >> bits, bits < 32.
ROCMFPX_BOTH uint32_t rocmfpx_funnel(uint32_t low, uint32_t high, uint32_t bits) {
#if defined(__CUDA_ARCH__) && !defined(GGML_USE_MUSA)
    return __funnelshift_r(low, high, bits);
#elif defined(__HIP_DEVICE_COMPILE__)
    return __builtin_amdgcn_alignbit(high, low, bits);
#else
    return (uint32_t) (((uint64_t) high << 32 | low) >> bits);
#endif
}

// Bits of a where mask is 1, of b elsewhere: one instruction on either machine.
ROCMFPX_BOTH uint32_t rocmfpx_select(uint32_t mask, uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__) && !defined(GGML_USE_MUSA)
    uint32_t out; // the compiler would fold the mask into two constants and two instructions
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(out) : "r"(mask), "r"(a), "r"(b));
    return out;
#else
    return (a & mask) | (b & ~mask);
#endif
}

ROCMFPX_BOTH int rocmfpx_dp4a(uint32_t a, uint32_t b, int sum) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
    return ggml_cuda_dp4a((int) a, (int) b, sum);
#else
    for (int i = 0; i < 4; ++i) {
        sum += (int8_t) (a >> 8 * i) * (int8_t) (b >> 8 * i);
    }
    return sum;
#endif
}

// Integer sums start at this number, the bits of 1.5 * 2^23: read as a float, the sum is 1.5 * 2^23 + itself, so a
// subtraction converts it. Exact while |sum| < 2^22; the largest sum is 32 * 128 * 127.
#define ROCMFPX_SUM_START 0x4b400000
#define ROCMFPX_SUM_FLOAT 12582912.0f

ROCMFPX_BOTH float rocmfpx_as_float(int bits) {
    float out;
    memcpy(&out, &bits, sizeof(out));
    return out;
}

// Levels by code, code 0 in the lowest byte.
#define ROCMFPX_LEVELS3_LOW  0x04020100u // 0, 1, 2, 4
#define ROCMFPX_LEVELS3_HIGH 0xfcfeff00u // 0, -1, -2, -4
#define ROCMFPX_LEVELS4_LOW  0x03020100u // 0, 1, 2, 3
#define ROCMFPX_LEVELS4_HIGH 0x0a080604u // 4, 6, 8, 10
#define ROCMFPX_MINUS4_LOW   0xfdfeff00u
#define ROCMFPX_MINUS4_HIGH  0xf6f8fafcu

// Eight 3-bit codes in the lowest 24 bits (the others are noise) to two words of levels, in order.
template <rocmfpx_selector by> ROCMFPX_BOTH void rocmfpx_spread3(uint32_t x, uint32_t * out) {
    x = rocmfpx_select(0x0000ffff, x, x << 4);
    if constexpr (by == ROCMFPX_NIBBLES) {
        x      = rocmfpx_select(0x00ff00ff, x, x << 2);
        x      = rocmfpx_select(0x0f0f0f0f, x, x << 1) & 0x77777777;
        out[0] = rocmfpx_prmt(ROCMFPX_LEVELS3_LOW, ROCMFPX_LEVELS3_HIGH, x);
        out[1] = rocmfpx_prmt(ROCMFPX_LEVELS3_LOW, ROCMFPX_LEVELS3_HIGH, x >> 16);
    } else {
        ROCMFPX_UNROLL
        for (int i = 0; i < 2; ++i) {
            uint32_t y = x >> 16 * i;
            y          = (y & 0x3f) | (y & 0xfc0) << 10;
            y          = (y & 0x00070007) | (y & 0x00380038) << 5;
            out[i]     = rocmfpx_perm(ROCMFPX_LEVELS3_LOW, ROCMFPX_LEVELS3_HIGH, y);
        }
    }
}

// Four 6-bit codes at bits 2..25 to bytes, each in the upper six bits: sign in bit 7, 4 * magnitude below.
ROCMFPX_BOTH uint32_t rocmfpx_spread6(uint32_t x) {
    x = rocmfpx_select(0x0000ffff, x, x << 4);
    return rocmfpx_select(0x00ff00ff, x, x << 2);
}

// 0xff in each byte whose top bit is set, 0 in the others.
template <rocmfpx_selector by> ROCMFPX_BOTH uint32_t rocmfpx_signs(uint32_t x) {
    if constexpr (by == ROCMFPX_NIBBLES) {
        return rocmfpx_prmt(x, x, 0xba98);
    } else {
        const uint32_t top = x & 0x80808080;
        return (top << 1) - (top >> 7);
    }
}

// The eight windows of four 6-bit codes, each at bits 2..25.
ROCMFPX_BOTH void rocmfpx_windows6(const uint32_t * code, uint32_t * out) {
    ROCMFPX_UNROLL
    for (int h = 0; h < 2; ++h) {
        const uint32_t * c = code + 3 * h;
        out[4 * h + 0]     = c[0] << 2;
        out[4 * h + 1]     = rocmfpx_funnel(c[0], c[1], 22);
        out[4 * h + 2]     = rocmfpx_funnel(c[1], c[2], 14);
        out[4 * h + 3]     = c[2] >> 6;
    }
}

// Two words of FP4 codes to nibbles of half h of the block, alternating between the words.
ROCMFPX_BOTH uint32_t rocmfpx_zip4(uint32_t a, uint32_t b, int h) {
    return h == 0 ? rocmfpx_select(0x0f0f0f0f, a, b << 4) : rocmfpx_select(0x0f0f0f0f, a >> 4, b);
}

// Eight nibbles of FP4 codes to two words of levels: selectors in nibbles, nibbles in order.
ROCMFPX_BOTH void rocmfpx_levels4(uint32_t x, uint32_t * out) {
    const uint32_t magnitude = x & 0x77777777;
    const uint32_t side      = 0x32103210 | (x & 0x88888888) >> 1;
    ROCMFPX_UNROLL
    for (int i = 0; i < 2; ++i) {
        const uint32_t plus  = rocmfpx_prmt(ROCMFPX_LEVELS4_LOW, ROCMFPX_LEVELS4_HIGH, magnitude >> 16 * i);
        const uint32_t minus = rocmfpx_prmt(ROCMFPX_MINUS4_LOW, ROCMFPX_MINUS4_HIGH, magnitude >> 16 * i);
        out[i]               = rocmfpx_prmt(plus, minus, side >> 16 * i);
    }
}

// Four FP4 codes in the low nibbles of bytes to levels: selectors in bytes.
ROCMFPX_BOTH uint32_t rocmfpx_levels4_bytes(uint32_t x) {
    const uint32_t magnitude = x & 0x07070707;
    const uint32_t plus      = rocmfpx_perm(ROCMFPX_LEVELS4_LOW, ROCMFPX_LEVELS4_HIGH, magnitude);
    const uint32_t minus     = rocmfpx_perm(ROCMFPX_MINUS4_LOW, ROCMFPX_MINUS4_HIGH, magnitude);
    return rocmfpx_perm(plus, minus, 0x03020100 | (x & 0x08080808) >> 1);
}

// Factor between the bytes of rocmfpx_levels and the levels of the format.
ROCMFPX_BOTH_CONSTEXPR int rocmfpx_level_factor(ggml_type type) {
    return type == GGML_TYPE_Q6_0_ROCMFPX ? 4 : 1;
}

// What rocmfpx_levels adds to each level.
ROCMFPX_BOTH_CONSTEXPR int rocmfpx_level_offset(ggml_type type) {
    return type == GGML_TYPE_Q2_0_ROCMFP2 ? 1 : 0;
}

// The 32 levels of a block, times the factor, plus the offset, in arranged order. Types with two scales: words 0..3
// belong to the first.
template <rocmfpx_selector by, ggml_type type> ROCMFPX_BOTH void rocmfpx_levels(const uint32_t * code, uint32_t * out) {
    if constexpr (type == GGML_TYPE_Q2_0_ROCMFP2) {
        ROCMFPX_UNROLL
        for (int i = 0; i < 8; ++i) {
            out[i] = code[i / 4] >> 2 * (i % 4) & 0x03030303;
        }
    } else if constexpr (type == GGML_TYPE_Q3_0_ROCMFPX) {
        rocmfpx_spread3<by>(code[0], out);
        rocmfpx_spread3<by>(rocmfpx_funnel(code[0], code[1], 24), out + 2);
        rocmfpx_spread3<by>(rocmfpx_funnel(code[1], code[2], 16), out + 4);
        rocmfpx_spread3<by>(code[2] >> 8, out + 6);
    } else if constexpr (type == GGML_TYPE_Q6_0_ROCMFPX) {
        rocmfpx_windows6(code, out);
        ROCMFPX_UNROLL
        for (int i = 0; i < 8; ++i) { // no borrow leaves a byte: its top bit is set before and flipped after
            const uint32_t x        = rocmfpx_spread6(out[i]);
            const uint32_t sign     = rocmfpx_signs<by>(x);
            const uint32_t negative = x & sign & 0x7c7c7c7c;
            out[i]                  = (((x & ~sign & 0x7c7c7c7c) | 0x80808080) - negative) ^ 0x80808080;
        }
    } else if constexpr (type == GGML_TYPE_Q8_0_ROCMFPX) {
        ROCMFPX_UNROLL
        for (int i = 0; i < 8; ++i) {
            out[i] = code[i];
        }
    } else if constexpr (by == ROCMFPX_BYTES) {
        ROCMFPX_UNROLL
        for (int i = 0; i < 4; ++i) {
            out[i]     = rocmfpx_levels4_bytes(code[i]);
            out[4 + i] = rocmfpx_levels4_bytes(code[i] >> 4);
        }
    } else if constexpr (type == GGML_TYPE_Q4_0_ROCMFP4_FAST) {
        ROCMFPX_UNROLL
        for (int i = 0; i < 4; ++i) {
            rocmfpx_levels4(code[i], out + 2 * i);
        }
    } else {
        ROCMFPX_UNROLL
        for (int i = 0; i < 4; ++i) {
            rocmfpx_levels4(rocmfpx_zip4(code[2 * (i % 2)], code[2 * (i % 2) + 1], i / 2), out + 2 * i);
        }
    }
}

// Puts the eight words of 32 activations, in order, in arranged order.
template <rocmfpx_selector by, ggml_type type> ROCMFPX_BOTH void rocmfpx_arrange(uint32_t * y) {
    if constexpr (type == GGML_TYPE_Q2_0_ROCMFP2) { // transposes four words of four bytes, twice
        ROCMFPX_UNROLL
        for (int h = 0; h < 8; h += 4) {
            const uint32_t ab = rocmfpx_pick<by, 0x5140>(y[h + 0], y[h + 1]);
            const uint32_t cd = rocmfpx_pick<by, 0x5140>(y[h + 2], y[h + 3]);
            const uint32_t ef = rocmfpx_pick<by, 0x7362>(y[h + 0], y[h + 1]);
            const uint32_t gh = rocmfpx_pick<by, 0x7362>(y[h + 2], y[h + 3]);
            y[h + 0]          = rocmfpx_pick<by, 0x5410>(ab, cd);
            y[h + 1]          = rocmfpx_pick<by, 0x7632>(ab, cd);
            y[h + 2]          = rocmfpx_pick<by, 0x5410>(ef, gh);
            y[h + 3]          = rocmfpx_pick<by, 0x7632>(ef, gh);
        }
    } else if constexpr (by == ROCMFPX_NIBBLES && type == GGML_TYPE_Q4_0_ROCMFP4_FAST) {
        uint32_t in[8];
        ROCMFPX_UNROLL
        for (int i = 0; i < 8; ++i) {
            in[i] = y[i];
        }
        ROCMFPX_UNROLL
        for (int i = 0; i < 4; ++i) { // weights 4i and 4i+16 alternate
            y[2 * i + 0] = rocmfpx_pick<by, 0x5140>(in[i], in[4 + i]);
            y[2 * i + 1] = rocmfpx_pick<by, 0x7362>(in[i], in[4 + i]);
        }
    } else if constexpr (by == ROCMFPX_NIBBLES && type == GGML_TYPE_Q4_0_ROCMFP4) {
        ROCMFPX_UNROLL
        for (int i = 0; i < 8; i += 2) { // weights 4i and 4i+4 alternate
            const uint32_t a = y[i], b = y[i + 1];
            y[i]     = rocmfpx_pick<by, 0x5140>(a, b);
            y[i + 1] = rocmfpx_pick<by, 0x7362>(a, b);
        }
    }
}

// What the sums of a block start at: ROCMFPX_SUM_START, less the offset of the levels times the activations, which
// come in order. Two scales: one start each.
template <ggml_type type> ROCMFPX_BOTH void rocmfpx_sum_starts(const uint32_t * y, int * start) {
    start[0] = start[1] = ROCMFPX_SUM_START;
    if constexpr (rocmfpx_level_offset(type) != 0) {
        ROCMFPX_UNROLL
        for (int i = 0; i < 8; ++i) {
            start[i / 4] = rocmfpx_dp4a(0xffffffff, y[i], start[i / 4]);
        }
    }
}

// Sums over the two halves of a block (sum[0] alone for types with one scale) of level factor * level * activation,
// as floats without rounding. v: rocmfpx_levels; y: arranged; start: rocmfpx_sum_starts.
template <ggml_type type>
ROCMFPX_BOTH void rocmfpx_sum_levels(const uint32_t * v, const uint32_t * y, const int * start, float * sum) {
    constexpr int scales = rocmfpx_scales(type);
    ROCMFPX_UNROLL
    for (int s = 0; s < scales; ++s) {
        int total = start[s];
        ROCMFPX_UNROLL
        for (int i = 8 / scales * s; i < 8 / scales * (s + 1); ++i) {
            total = rocmfpx_dp4a(v[i], y[i], total);
        }
        sum[s] = rocmfpx_as_float(total) - ROCMFPX_SUM_FLOAT;
    }
}

// As rocmfpx_levels and rocmfpx_sum_levels in one, with fewer instructions where the levels serve one column: two
// sums in place of a sign. Same results.
template <rocmfpx_selector by, ggml_type type>
ROCMFPX_BOTH void rocmfpx_sum_codes(const uint32_t * code, const uint32_t * y, const int * start, float * sum) {
    if constexpr (type == GGML_TYPE_Q2_0_ROCMFP2) { // half of the fields stay in place, four times too large
        ROCMFPX_UNROLL
        for (int h = 0; h < 2; ++h) {
            const uint32_t low = code[h], high = code[h] >> 4;
            int one  = rocmfpx_dp4a(low & 0x03030303, y[4 * h], start[h]);
            int four = rocmfpx_dp4a(low & 0x0c0c0c0c, y[4 * h + 1], ROCMFPX_SUM_START);
            one      = rocmfpx_dp4a(high & 0x03030303, y[4 * h + 2], one);
            four     = rocmfpx_dp4a(high & 0x0c0c0c0c, y[4 * h + 3], four);
            sum[h]   = fmaf(rocmfpx_as_float(four), 0.25f, rocmfpx_as_float(one)) - 1.25f * ROCMFPX_SUM_FLOAT;
        }
    } else if constexpr (type == GGML_TYPE_Q6_0_ROCMFPX) {
        uint32_t window[8];
        rocmfpx_windows6(code, window);
        ROCMFPX_UNROLL
        for (int h = 0; h < 2; ++h) {
            int all = ROCMFPX_SUM_START, negative = ROCMFPX_SUM_START;
            ROCMFPX_UNROLL
            for (int i = 4 * h; i < 4 * h + 4; ++i) {
                const uint32_t x    = rocmfpx_spread6(window[i]);
                const uint32_t sign = rocmfpx_signs<by>(x);
                all                 = rocmfpx_dp4a(x & 0x7c7c7c7c, y[i], all);
                negative            = rocmfpx_dp4a(x & sign & 0x7c7c7c7c, y[i], negative);
            }
            sum[h] = fmaf(rocmfpx_as_float(negative), -2.0f, rocmfpx_as_float(all)) + ROCMFPX_SUM_FLOAT;
        }
    } else if constexpr (by == ROCMFPX_NIBBLES && rocmfpx_code_words(type) == 4) {
        // A selector with bit 3 set gives the top bit of a magnitude, which is 0: the sign picks one of two sums.
        constexpr bool fast = type == GGML_TYPE_Q4_0_ROCMFP4_FAST;
        int plus[2]         = {ROCMFPX_SUM_START, ROCMFPX_SUM_START};
        int minus[2]        = {ROCMFPX_SUM_START, ROCMFPX_SUM_START};
        ROCMFPX_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int h      = fast ? 0 : i / 2;
            const uint32_t x = fast ? code[i] : rocmfpx_zip4(code[2 * (i % 2)], code[2 * (i % 2) + 1], i / 2);
            const uint32_t n = x ^ 0x88888888;
            ROCMFPX_UNROLL
            for (int k = 0; k < 2; ++k) {
                const uint32_t p = rocmfpx_prmt(ROCMFPX_LEVELS4_LOW, ROCMFPX_LEVELS4_HIGH, x >> 16 * k);
                const uint32_t m = rocmfpx_prmt(ROCMFPX_LEVELS4_LOW, ROCMFPX_LEVELS4_HIGH, n >> 16 * k);
                plus[h]          = rocmfpx_dp4a(p, y[2 * i + k], plus[h]);
                minus[h]         = rocmfpx_dp4a(m, y[2 * i + k], minus[h]);
            }
        }
        ROCMFPX_UNROLL
        for (int h = 0; h < rocmfpx_scales(type); ++h) {
            sum[h] = rocmfpx_as_float(plus[h]) - rocmfpx_as_float(minus[h]);
        }
    } else {
        uint32_t v[8];
        rocmfpx_levels<by, type>(code, v);
        rocmfpx_sum_levels<type>(v, y, start, sum);
    }
}
