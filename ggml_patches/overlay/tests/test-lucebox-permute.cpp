// The permute decode of the GPU kernels, run on the host over every code: rocmfpx-permute.cuh holds a plain C body of
// each instruction it uses. Compared with the level tables of ggml-rocmfpx.h and with the scalar dequantisers.

#include "../ggml/src/ggml-cuda/rocmfpx-permute.cuh"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>

static int failures = 0;

#define CHECK(cond, ...)                                                                                               \
    do {                                                                                                               \
        if (!(cond) && ++failures <= 20) {                                                                             \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                            \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
        }                                                                                                              \
    } while (0)

static const int levels4[16] = ROCMFP4_LEVELS;
static const int levels3[8]  = ROCMFP3_LEVELS;
static const int levels2[4]  = ROCMFP2_LEVELS;

static int byte_of(uint32_t word, int i) {
    return (int8_t) (word >> 8 * i);
}

static int level6(int code) {
    return code & 32 ? -(code & 31) : code & 31;
}

// All 2^24 windows of eight 3-bit codes and of four 6-bit codes.
template <rocmfpx_selector by> static void check_windows() {
    for (uint32_t x = 0; x < 1u << 24; ++x) {
        const uint32_t noise = x * 2654435761u & 0xff000000; // bits a window does not own
        uint32_t out[2];
        rocmfpx_spread3<by>(x | noise, out);
        for (int i = 0; i < 8; ++i) {
            CHECK(byte_of(out[i / 4], i % 4) == levels3[x >> 3 * i & 7], "FP3 window %06x, code %d", x, i);
        }
        const uint32_t spread = rocmfpx_spread6(x << 2 | noise >> 30 | (noise & 0xc0000000));
        const uint32_t sign   = rocmfpx_signs<by>(spread);
        for (int i = 0; i < 4; ++i) {
            const int code = x >> 6 * i & 63;
            CHECK((spread >> 8 * i & 0x7c) == 4u * (code & 31), "FP6 window %06x, code %d", x, i);
            CHECK((sign >> 8 * i & 255) == (code & 32 ? 255u : 0u), "FP6 sign of window %06x, code %d", x, i);
        }
    }
}

// All 2^16 fields of four nibbles, in both halves of a word.
static void check_nibbles() {
    for (uint32_t x = 0; x < 1u << 16; ++x) {
        const uint32_t word = x | x * 40503u << 16;
        uint32_t out[2];
        rocmfpx_levels4(word, out);
        for (int i = 0; i < 8; ++i) {
            CHECK(byte_of(out[i / 4], i % 4) == levels4[word >> 4 * i & 15], "FP4 word %08x, code %d", word, i);
        }
        const uint32_t low  = rocmfpx_levels4_bytes(word);
        const uint32_t high = rocmfpx_levels4_bytes(word >> 4);
        for (int i = 0; i < 4; ++i) {
            CHECK(byte_of(low, i) == levels4[word >> 8 * i & 15], "FP4 bytes %08x, low nibble %d", word, i);
            CHECK(byte_of(high, i) == levels4[word >> (8 * i + 4) & 15], "FP4 bytes %08x, high nibble %d", word, i);
        }
    }
}

static int level_of(ggml_type type, const uint8_t * block, int i) {
    const auto field = [&](int at, int bits) {
        int v = 0;
        for (int k = 0; k < bits; ++k) {
            v |= (block[(at + k) / 8] >> (at + k) % 8 & 1) << k;
        }
        return v;
    };
    switch (type) {
        case GGML_TYPE_Q2_0_ROCMFP2:
            return levels2[field(2 * i, 2)];
        case GGML_TYPE_Q3_0_ROCMFPX:
            return levels3[field(3 * i, 3)];
        case GGML_TYPE_Q6_0_ROCMFPX:
            return level6(field(6 * i, 6));
        case GGML_TYPE_Q8_0_ROCMFPX:
            return (int8_t) block[i];
        default:
            return levels4[i < 16 ? block[i] & 15 : block[i - 16] >> 4];
    }
}

// One block: levels in arranged order, sums both ways, against the plain sums of the halves.
template <rocmfpx_selector by, ggml_type type>
static void check_block(const std::array<uint8_t, 32> & bytes, const std::array<int8_t, 32> & activations) {
    constexpr int words  = rocmfpx_code_words(type);
    constexpr int scales = rocmfpx_scales(type);
    uint32_t code[words], y[8], v[8], index[8];
    uint8_t order[32];
    int start[2];
    float levels_sum[2] = {}, codes_sum[2] = {};
    memcpy(code, bytes.data(), sizeof(code));
    memcpy(y, activations.data(), sizeof(y));
    for (int i = 0; i < 32; ++i) {
        order[i] = (uint8_t) i;
    }
    memcpy(index, order, sizeof(index));
    rocmfpx_sum_starts<type>(y, start);
    rocmfpx_arrange<by, type>(y);
    rocmfpx_arrange<by, type>(index);
    rocmfpx_levels<by, type>(code, v);
    rocmfpx_sum_levels<type>(v, y, start, levels_sum);
    rocmfpx_sum_codes<by, type>(code, y, start, codes_sum);
    const int factor = rocmfpx_level_factor(type);
    int expected[2]  = {};
    for (int k = 0; k < 32; ++k) {
        const int i     = byte_of(index[k / 4], k % 4);
        const int level = level_of(type, bytes.data(), i);
        CHECK(byte_of(v[k / 4], k % 4) == factor * level + rocmfpx_level_offset(type), "type %d, weight %d", type, i);
        CHECK(byte_of(y[k / 4], k % 4) == activations[i], "type %d, activation %d", type, i);
        CHECK(scales == 1 || i / 16 == k / 16, "type %d: weight %d in the wrong half", type, i);
        expected[scales == 1 ? 0 : i / 16] += factor * level * activations[i];
    }
    for (int s = 0; s < scales; ++s) {
        CHECK(levels_sum[s] == (float) expected[s], "type %d: sum %g, expected %d", type, levels_sum[s], expected[s]);
        CHECK(codes_sum[s] == (float) expected[s], "type %d: sum %g, expected %d", type, codes_sum[s], expected[s]);
    }
}

template <ggml_type type> static void check_blocks(std::mt19937 & random) {
    std::array<uint8_t, 32> bytes;
    std::array<int8_t, 32> y;
    const auto both = [&] {
        check_block<ROCMFPX_NIBBLES, type>(bytes, y);
        check_block<ROCMFPX_BYTES, type>(bytes, y);
    };
    for (int fill = 0; fill < 256; ++fill) { // every byte everywhere, with the largest activations
        bytes.fill((uint8_t) fill);
        for (int value : {-128, -127, 0, 1, 127}) {
            y.fill((int8_t) value);
            both();
        }
    }
    for (int i = 0; i < 20000; ++i) {
        for (int k = 0; k < 32; ++k) {
            bytes[k] = (uint8_t) random();
            y[k]     = (int8_t) random();
        }
        both();
    }
}

// The tables above are those of the dequantisers: scale byte 0x40 is 1.
template <ggml_type type, typename Block>
static void check_dequantiser(void (*dequantize)(const Block *, float *, int64_t), std::mt19937 & random) {
    for (int n = 0; n < 1000; ++n) {
        Block block;
        uint8_t * bytes = (uint8_t *) &block;
        for (size_t i = 0; i < sizeof(block); ++i) {
            bytes[i] = (int) i < 4 * rocmfpx_code_words(type) ? (uint8_t) random() : 0x40;
        }
        float values[32];
        dequantize(&block, values, 32);
        for (int i = 0; i < 32; ++i) {
            CHECK(values[i] == (float) level_of(type, bytes, i), "type %d, weight %d", type, i);
        }
    }
}

int main() {
    std::mt19937 random(4);
    check_windows<ROCMFPX_NIBBLES>();
    check_windows<ROCMFPX_BYTES>();
    check_nibbles();
#define CHECK_TYPE(id, suffix, stem, name, bytes)                                                                      \
    static_assert(rocmfpx_bytes(GGML_TYPE_##suffix) == sizeof(block_##stem), "wrong " name " block size");             \
    check_blocks<GGML_TYPE_##suffix>(random);                                                                          \
    check_dequantiser<GGML_TYPE_##suffix, block_##stem>(dequantize_row_##stem, random);
    ROCMFPX_TYPES(CHECK_TYPE)
    printf("%d failures\n", failures);
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
