// Every dot product engine this binary holds and this machine runs, against the scalar reference, bit for bit:
// packed rows, and bands times panels. Blocks are random bytes, so scales are often invalid; buffers end where
// the data ends, so a sanitizer build sees any read past them.

#include "../ggml/src/ggml-rocmfpx/dot.h"

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

namespace {

constexpr int Q8_BYTES = 34;

struct format {
    const char * name;
    int id;
    size_t block_bytes;
    int code_bytes;
    void (*generic)(int, float *, size_t, const void *, size_t, const void *, size_t, int);
};

#define ADD_FORMAT(type_id, suffix, stem, text, bytes)                                                                 \
    {text, rocmfpx_format_of(type_id), sizeof(block_##stem), (int) sizeof(block_##stem::qs),                           \
     ggml_vec_dot_##stem##_q8_0_generic},
const format formats[] = {ROCMFPX_TYPES(ADD_FORMAT)};

std::mt19937 rng(1);

int below(int n) {
    return (int) (rng() % (unsigned) n);
}

// kind 0: any scale byte. 1: subnormal scales. 2: valid ones.
std::vector<uint8_t> random_blocks(const format & f, size_t n, int kind) {
    std::vector<uint8_t> x(n * f.block_bytes);
    for (auto & byte : x) {
        byte = (uint8_t) rng();
    }
    for (size_t b = 0; kind > 0 && b < n; ++b) {
        for (size_t i = (size_t) f.code_bytes; i < f.block_bytes; ++i) {
            x[b * f.block_bytes + i] = (uint8_t) below(kind == 1 ? 9 : ROCMFPX_SCALE_MAX + 1);
        }
    }
    return x;
}

// Q8_0 as its quantizer writes it: finite half, no -128. Extreme q now and then, subnormal d now and then.
std::vector<uint8_t> random_q8_0(size_t n) {
    std::vector<uint8_t> y(n * Q8_BYTES);
    const bool extreme   = below(7) == 0;
    const bool subnormal = below(5) == 0;
    for (size_t b = 0; b < n; ++b) {
        const uint16_t half = (uint16_t) (rng() & (subnormal ? 0x03ff : 0x7bff));
        std::memcpy(&y[b * Q8_BYTES], &half, sizeof(half));
        for (int i = 0; i < QK_ROCMFPX; ++i) {
            y[b * Q8_BYTES + 2 + i] = (uint8_t) (extreme ? (below(2) ? 127 : -127) : below(255) - 127);
        }
    }
    return y;
}

bool same_bits(float a, float b) {
    return std::memcmp(&a, &b, sizeof(a)) == 0;
}

float reference(const format & f, int64_t n_blocks, const uint8_t * x, const uint8_t * y) {
    float result = 0.0f;
    f.generic((int) n_blocks * QK_ROCMFPX, &result, 0, x, 0, y, 0, 1);
    return result;
}

int test_rows(const rocmfpx_kernels & engine, const format & f, int runs) {
    int bad = 0;
    for (int run = 0; run < runs; ++run) {
        const int n                  = 1 + below(40);
        const std::vector<uint8_t> x = random_blocks(f, n, run % 3);
        const std::vector<uint8_t> y = random_q8_0(n);
        const float got              = engine.dot[f.id](n, x.data(), y.data());
        const float want             = reference(f, n, x.data(), y.data());
        if (!same_bits(got, want) && bad++ == 0) {
            std::fprintf(stderr, "%s %s: %d blocks: %a, reference %a\n", engine.name, f.name, n, got, want);
        }
    }
    return bad;
}

int test_bands(const rocmfpx_kernels & engine, const format & f, int runs) {
    int bad = 0;
    for (int run = 0; run < runs; ++run) {
        const int n                     = 1 + below(12);
        const int cols                  = 1 + below(ROCMFPX_PANEL);
        const int width                 = cols + below(ROCMFPX_PANEL + 1 - cols);
        const std::vector<uint8_t> rows = random_blocks(f, (size_t) n * ROCMFPX_BAND, run % 3);
        std::vector<uint8_t> band(rows.size());
        std::vector<rocmfpx_act> panel((size_t) n * width - (width - cols));
        std::vector<float> out((size_t) cols * ROCMFPX_BAND);
        std::vector<std::vector<uint8_t>> act;
        rocmfpx_pack_band(f.id, rows.data(), n, band.data());
        for (int c = 0; c < cols; ++c) {
            act.push_back(random_q8_0(n));
            rocmfpx_pack_column(f.id, act[c].data(), n, panel.data() + c, width);
        }
        engine.tile[f.id](n, band.data(), panel.data(), width, cols, out.data());
        for (int i = 0; i < cols * ROCMFPX_BAND; ++i) {
            const uint8_t * row = rows.data() + (size_t) (i % ROCMFPX_BAND) * n * f.block_bytes;
            const float want    = reference(f, n, row, act[i / ROCMFPX_BAND].data());
            if (!same_bits(out[i], want) && bad++ == 0) {
                std::fprintf(stderr, "%s %s: %d blocks, %d columns: row %d of column %d: %a, reference %a\n",
                             engine.name, f.name, n, cols, i % ROCMFPX_BAND, i / ROCMFPX_BAND, out[i], want);
            }
        }
    }
    return bad;
}

} // namespace

int main() {
    int bad = 0;
    for (int i = 0; rocmfpx_kernels_at(i) != nullptr; ++i) {
        const rocmfpx_kernels & engine = *rocmfpx_kernels_at(i);
        if (!engine.works()) {
            std::fprintf(stderr, "%-7s not on this machine\n", engine.name);
            continue;
        }
        for (const format & f : formats) {
            const int rows  = test_rows(engine, f, 600);
            const int bands = engine.tile ? test_bands(engine, f, 200) : 0;
            std::fprintf(stderr, "%-7s %-18s rows %s, bands %s\n", engine.name, f.name, rows ? "FAIL" : "ok",
                         !engine.tile ? "none"
                         : bands      ? "FAIL"
                                      : "ok");
            bad += rows + bands;
        }
    }
    std::puts(bad == 0 ? "ok" : "failed");
    return bad != 0;
}
