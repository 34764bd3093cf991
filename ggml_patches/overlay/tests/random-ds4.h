#pragma once

// Owns: DeepSeek-V4 models with seeded random weights, of any size and any mix of tensor types. Such a model never
// exists as a file: a stream that looks like a GGUF file makes its bytes while llama.cpp reads them, so memory holds
// the weights once, and the loader chooses buffers and layouts as it does for a real file.
// Refuses: shapes that upstream's graph cannot run, and rows that are no whole number of blocks.
//
// Weights come from a pool of normally distributed rows for each type and row length, quantised once by the type's
// own quantiser; a matrix is a walk through the pool from a place of its own. Speed depends on none of this, finite
// activations do. Same build, shape, types and seed: same bytes.

#include "llama.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

// Sizes; the defaults are the real ones in six layers and 16 experts. n_vocab is in proportion to the layers.
struct random_ds4_shape {
    std::vector<int32_t> ratios = {0, 4, 128, 4, 128, 4}; // compression ratio of each layer: 0, 4 or 128

    uint32_t n_embd        = 4096;
    uint32_t n_vocab       = 18048;
    uint32_t n_head        = 64;
    uint32_t head_size     = 512;
    uint32_t rope_size     = 64; // rotated tail of a head
    uint32_t q_rank        = 1024;
    uint32_t o_groups      = 8;
    uint32_t o_rank        = 1024;
    uint32_t n_expert      = 16;
    uint32_t n_expert_used = 6;
    uint32_t n_ff          = 2048;
    uint32_t n_index_head  = 64;
    uint32_t index_head    = 128; // size of an indexer head
    uint32_t index_top_k   = 512;
    uint32_t n_window      = 128;
    uint32_t n_hash_layer  = 1; // leading layers that choose experts by token id
};

// Four layers, narrow ones: for tests of what is placed and refused, not of numbers.
random_ds4_shape random_ds4_small();

// Types by class of weight. Compressors, router and indexer projection are BF16, mixing matrices and position tables
// F32, as in converted checkpoints.
struct random_ds4_types {
    ggml_type gate_up;   // routed experts
    ggml_type down;      // routed experts
    ggml_type dense;     // attention, indexer queries, shared experts
    ggml_type embedding; // token embedding and output matrix
};

// Type of a name as ggml prints it, in upper or lower case. Returns GGML_TYPE_COUNT for an unknown name.
ggml_type random_ds4_type(const std::string & name);

// Open a model as a stream to be read like a GGUF file; close it with fclose. Returns NULL and sets error.
FILE * random_ds4_open(const random_ds4_shape & shape, const random_ds4_types & types, uint64_t seed,
                       std::string & error);

// Load a model; free it with llama_model_free. params.load_mode is ignored. Returns NULL and sets error.
llama_model * random_ds4_load(const random_ds4_shape & shape, const random_ds4_types & types, uint64_t seed,
                              llama_model_params params, std::string & error);
