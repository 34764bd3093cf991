// Drives every codec over odd row lengths, random float bits and random block bytes, in buffers of the exact
// size, so that a build with address and undefined-behaviour checks stops at the first slip.
// Prints one line a type: blocks encoded, random blocks with an invalid scale, how many of those were reported, and
// a hash of everything encoded, decoded and multiplied, which is the same on every machine.

#include "rocmfpx-codec.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint64_t hash = 0xcbf29ce484222325u;

static void remember(const void * data, size_t size) {
    for (size_t i = 0; i < size; ++i) {
        hash = (hash ^ ((const uint8_t *) data)[i]) * 0x100000001b3u;
    }
}

static uint32_t random_bits(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t) (state >> 32);
}

static void * fresh(size_t size) {
    uint8_t * bytes = malloc(size);
    for (size_t i = 0; i < size; ++i) {
        bytes[i] = (uint8_t) random_bits();
    }
    return bytes;
}

// Random float bits of any magnitude, or plain small values.
static float * random_row(int64_t k, bool any_bits) {
    float * x = fresh((size_t) k * sizeof(float));
    for (int64_t i = 0; i < k && !any_bits; ++i) {
        x[i] = ((float) random_bits() / 4294967296.0f - 0.5f) * 0.1f;
    }
    return x;
}

static int encode(const rocmfpx_codec * c, int64_t nrows, int64_t k, bool any_bits, bool weighted) {
    const size_t nbytes = (size_t) (nrows * k / QK_ROCMFPX * rocmfpx_block_bytes(c));
    float * x           = random_row(nrows * k, any_bits);
    float * qw          = random_row(k, any_bits);
    uint8_t * wanted    = fresh(nbytes);
    rocmfpx_quantize_with(c, ROCMFPX_SCALAR, x, wanted, nrows, k, weighted ? qw : NULL);
    for (int engine = ROCMFPX_SCALAR; engine <= ROCMFPX_NEON; ++engine) {
        uint8_t * y = fresh(nbytes);
        if (rocmfpx_engine_works((enum rocmfpx_engine) engine)) {
            rocmfpx_quantize_with(c, (enum rocmfpx_engine) engine, x, y, nrows, k, weighted ? qw : NULL);
            if (memcmp(y, wanted, nbytes) != 0 || !rocmfpx_validate(c, y, nbytes)) {
                fprintf(stderr, "type %d, engine %d: wrong bytes\n", c->type, engine);
                exit(1);
            }
        }
        free(y);
    }
    remember(wanted, nbytes);
    free(wanted);
    free(qw);
    free(x);
    return (int) (nrows * k / QK_ROCMFPX);
}

static void read_random_blocks(const rocmfpx_codec * c, int64_t nblocks, int * invalid, int * reported) {
    const size_t block_bytes = (size_t) rocmfpx_block_bytes(c);
    uint8_t * data           = fresh((size_t) nblocks * block_bytes);
    uint8_t * act            = fresh((size_t) nblocks * ROCMFPX_Q8_0_BYTES);
    float * y                = fresh((size_t) nblocks * QK_ROCMFPX * sizeof(float));
    rocmfpx_decode_row(c, data, y, nblocks * QK_ROCMFPX);
    const float dot = rocmfpx_dot_q8_0(c, nblocks * QK_ROCMFPX, data, act);
    remember(y, (size_t) nblocks * QK_ROCMFPX * sizeof(float));
    if (dot == dot) {
        remember(&dot, sizeof(dot)); // the sign of a NaN differs between machines
    }
    for (int64_t b = 0; b < nblocks; ++b) {
        const uint8_t * block = data + (size_t) b * block_bytes;
        bool bad              = false;
        for (int g = 0; g < rocmfpx_scale_count(c); ++g) {
            bad = bad || block[rocmfpx_code_bytes(c) + g] > 0x7e;
        }
        *invalid += bad;
        *reported += !rocmfpx_validate(c, block, block_bytes);
    }
    *reported += rocmfpx_validate(c, data, (size_t) nblocks * block_bytes - 1); // a cut block is never valid
    free(y);
    free(act);
    free(data);
}

int main(void) {
    static const int types[] = {100, 101, 102, 103, 104, 107};
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); ++t) {
        const rocmfpx_codec * c = rocmfpx_codec_of(types[t]);
        int blocks              = 0;
        int invalid             = 0;
        int reported            = 0;
        for (int64_t nblocks = 1; nblocks <= 9; ++nblocks) {
            for (int mode = 0; mode < 4; ++mode) {
                blocks += encode(c, 3, nblocks * QK_ROCMFPX, mode & 1, mode & 2);
            }
            for (int i = 0; i < 50; ++i) {
                read_random_blocks(c, nblocks, &invalid, &reported);
            }
        }
        printf("%d %d %d %d %016llx\n", types[t], blocks, invalid, reported, (unsigned long long) hash);
    }
    return 0;
}
