#include "random-ds4.h"

#include "ring-stream.h"

#include "ggml-cpp.h"
#include "gguf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <strings.h>
#include <utility>

static const uint32_t N_STREAM  = 4;
static const uint32_t N_MIX     = (2 + N_STREAM) * N_STREAM;
static const int64_t POOL_ROWS  = 509; // prime, so that equally long matrices do not repeat each other
static const int64_t POOL_COUNT = 1 << 21;

// Splitmix64: small, fast, and the same numbers everywhere.
struct random_source {
    uint64_t state;

    uint64_t next() {
        uint64_t z = (state += 0x9e3779b97f4a7c15);
        z          = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z          = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }

    // Nearly normal, deviation 1, never beyond 3.5: the sum of four uniform numbers.
    float normal() {
        const uint64_t z  = next();
        const int64_t sum = (z & 0xffff) + ((z >> 16) & 0xffff) + ((z >> 32) & 0xffff) + (z >> 48);
        return (float) (sum - 2 * 0xffff) / 37837.2f;
    }
};

static random_source source_for(uint64_t seed, const std::string & name) {
    uint64_t hash = 0xcbf29ce484222325; // FNV-1a
    for (const char c : name) {
        hash = (hash ^ (uint8_t) c) * 0x100000001b3;
    }
    return {seed * 0x9e3779b97f4a7c15 ^ hash};
}

// What the values of a tensor look like. MATRIX: deviation 1 / sqrt(row length).
enum tensor_kind { MATRIX, NORM, HALF, BIAS, SCALE, EXPERT_IDS };

// Collects the tensors of a model: their description for the header, their contents for the stream.
struct model_builder {
    const random_ds4_shape & shape;
    const random_ds4_types & types;
    uint64_t seed;
    ring_stream & stream;
    ggml_context_ptr ctx{};
    gguf_context_ptr header{};
    std::string prefix{};
    std::string error{};

    std::map<std::pair<ggml_type, int64_t>, const bytes *> pools{}; // by type and row length

    void add(const char * suffix, tensor_kind kind, ggml_type type, std::array<int64_t, 3> ne);

    void matrix(const char * suffix, ggml_type type, int64_t columns, int64_t rows, int64_t count = 1) {
        add(suffix, MATRIX, type, {columns, rows, count});
    }

    void floats(const char * suffix, tensor_kind kind, int64_t columns, int64_t rows = 1) {
        add(suffix, kind, GGML_TYPE_F32, {columns, rows, 1});
    }

    const bytes * pool(ggml_type type, int64_t columns);
    const bytes * contents(random_source source, tensor_kind kind, int64_t columns, int64_t rows);
};

const bytes * model_builder::pool(ggml_type type, int64_t columns) {
    const bytes *& found = pools[{type, columns}];
    if (found != nullptr) {
        return found;
    }
    const int64_t rows = std::max<int64_t>(1, std::min(POOL_ROWS, POOL_COUNT / columns | 1));
    std::vector<float> values(rows * columns);
    std::vector<float> importance(columns, 1.0f); // some types insist on it
    random_source source  = source_for(seed, "pool " + std::to_string(columns));
    const float deviation = 1.0f / sqrtf((float) columns);
    for (float & value : values) {
        value = deviation * source.normal();
    }
    bytes * made          = stream.new_ring(rows * ggml_row_size(type, columns));
    const float * imatrix = ggml_quantize_requires_imatrix(type) ? importance.data() : nullptr;
    ggml_quantize_chunk(type, values.data(), made->data(), 0, rows, columns, imatrix);
    return found = made;
}

const bytes * model_builder::contents(random_source source, tensor_kind kind, int64_t columns, int64_t rows) {
    bytes * made = stream.new_ring(columns * rows * sizeof(float));
    if (kind == EXPERT_IDS) {
        int32_t * ids = (int32_t *) made->data();
        for (int64_t row = 0; row < rows; row++, ids += columns) {
            for (int64_t i = 0; i < columns;) { // ids of a row differ
                ids[i] = source.next() % shape.n_expert;
                i += std::find(ids, ids + i, ids[i]) == ids + i;
            }
        }
        return made;
    }
    const float mean      = kind == NORM ? 1.0f : kind == SCALE ? 0.5f : 0.0f;
    const float deviation = kind == HALF ? 0.5f : kind == BIAS ? 0.3f : 0.1f;
    float * values        = (float *) made->data();
    for (int64_t i = 0; i < columns * rows; i++) {
        values[i] = mean + deviation * source.normal();
    }
    return made;
}

void model_builder::add(const char * suffix, tensor_kind kind, ggml_type type, std::array<int64_t, 3> ne) {
    const std::string name = prefix + suffix;
    if (ne[0] % ggml_blck_size(type) != 0) {
        error = name + ": rows of " + std::to_string(ne[0]) + " are no whole blocks of " + ggml_type_name(type);
        return;
    }
    const int n_dims     = ne[2] > 1 ? 3 : ne[1] > 1 ? 2 : 1;
    ggml_tensor * tensor = ggml_new_tensor(ctx.get(), type, n_dims, ne.data());
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(header.get(), tensor);

    random_source source = source_for(seed, name);
    ring_part part       = {0, ggml_nbytes(tensor), nullptr, 0}; // offsets follow with the header's size
    if (kind == MATRIX) {
        const size_t row_size = ggml_row_size(type, ne[0]);
        part.ring             = pool(type, ne[0]);
        part.ring_start       = source.next() % (part.ring->size() / row_size) * row_size;
    } else {
        part.ring = contents(source, kind, ne[0], ne[1]);
    }
    stream.parts.push_back(part);
}

static void add_attention(model_builder & b) {
    const random_ds4_shape & s = b.shape;
    const ggml_type dense      = b.types.dense;
    const int64_t heads        = (int64_t) s.n_head * s.head_size;
    const int64_t out          = (int64_t) s.o_groups * s.o_rank;
    b.floats("attn_norm.weight", NORM, s.n_embd);
    b.floats("attn_sinks.weight", HALF, s.n_head);
    b.matrix("attn_q_a.weight", dense, s.n_embd, s.q_rank);
    b.floats("attn_q_a_norm.weight", NORM, s.q_rank);
    b.matrix("attn_q_b.weight", dense, s.q_rank, heads);
    b.matrix("attn_kv.weight", dense, s.n_embd, s.head_size);
    b.floats("attn_kv_a_norm.weight", NORM, s.head_size);
    b.matrix("attn_output_a.weight", dense, heads / s.o_groups, out);
    b.matrix("attn_output_b.weight", dense, out, s.n_embd);
    for (const std::string site : {"hc_attn", "hc_ffn"}) {
        b.matrix((site + "_fn.weight").c_str(), GGML_TYPE_F32, (int64_t) N_STREAM * s.n_embd, N_MIX);
        b.floats((site + "_base.weight").c_str(), HALF, N_MIX);
        b.floats((site + "_scale.weight").c_str(), SCALE, 3);
    }
}

// At ratio 4 a token feeds its own block and the next one, so its projections are twice as wide.
static void add_compressor(model_builder & b, const std::string & name, int32_t ratio, int64_t size) {
    const int64_t width = ratio == 4 ? 2 * size : size;
    b.matrix((name + "_kv.weight").c_str(), GGML_TYPE_BF16, b.shape.n_embd, width);
    b.matrix((name + "_gate.weight").c_str(), GGML_TYPE_BF16, b.shape.n_embd, width);
    b.floats((name + "_ape.weight").c_str(), HALF, width, ratio);
    b.floats((name + "_norm.weight").c_str(), NORM, size);
}

static void add_indexer(model_builder & b) {
    const random_ds4_shape & s = b.shape;
    b.matrix("indexer.attn_q_b.weight", b.types.dense, s.q_rank, (int64_t) s.n_index_head * s.index_head);
    b.matrix("indexer.proj.weight", GGML_TYPE_BF16, s.n_embd, s.n_index_head);
    add_compressor(b, "indexer_compressor", 4, s.index_head);
}

static void add_ffn(model_builder & b, bool hash_routed) {
    const random_ds4_shape & s = b.shape;
    b.floats("ffn_norm.weight", NORM, s.n_embd);
    b.matrix("ffn_gate_inp.weight", GGML_TYPE_BF16, s.n_embd, s.n_expert);
    if (hash_routed) {
        b.add("ffn_gate_tid2eid.weight", EXPERT_IDS, GGML_TYPE_I32, {s.n_expert_used, s.n_vocab, 1});
    } else {
        b.floats("exp_probs_b.bias", BIAS, s.n_expert);
    }
    b.matrix("ffn_gate_exps.weight", b.types.gate_up, s.n_embd, s.n_ff, s.n_expert);
    b.matrix("ffn_up_exps.weight", b.types.gate_up, s.n_embd, s.n_ff, s.n_expert);
    b.matrix("ffn_down_exps.weight", b.types.down, s.n_ff, s.n_embd, s.n_expert);
    b.matrix("ffn_gate_shexp.weight", b.types.dense, s.n_embd, s.n_ff);
    b.matrix("ffn_up_shexp.weight", b.types.dense, s.n_embd, s.n_ff);
    b.matrix("ffn_down_shexp.weight", b.types.dense, s.n_ff, s.n_embd);
}

static void add_tensors(model_builder & b) {
    const random_ds4_shape & s = b.shape;
    b.matrix("token_embd.weight", b.types.embedding, s.n_embd, s.n_vocab);
    b.matrix("output.weight", b.types.embedding, s.n_embd, s.n_vocab);
    b.floats("output_norm.weight", NORM, s.n_embd);
    b.matrix("output_hc_fn.weight", GGML_TYPE_F32, (int64_t) N_STREAM * s.n_embd, N_STREAM);
    b.floats("output_hc_base.weight", HALF, N_STREAM);
    b.floats("output_hc_scale.weight", SCALE, 1);
    for (size_t layer = 0; layer < s.ratios.size(); layer++) {
        b.prefix = "blk." + std::to_string(layer) + ".";
        add_attention(b);
        if (s.ratios[layer] != 0) {
            add_compressor(b, "attn_compressor", s.ratios[layer], s.head_size);
        }
        if (s.ratios[layer] == 4) {
            add_indexer(b);
        }
        add_ffn(b, layer < s.n_hash_layer);
    }
}

// Keys with the exact number types that the loader insists on.
static void add_keys(gguf_context * header, const random_ds4_shape & s) {
    const std::string p    = "deepseek4.";
    const uint32_t n_layer = s.ratios.size();
    const std::vector<float> limits(n_layer, 10.0f);
    const std::pair<const char *, uint32_t> integers[] = {
        {"context_length", 1 << 20},
        {"embedding_length", s.n_embd},
        {"embedding_length_out", N_STREAM * s.n_embd},
        {"block_count", n_layer},
        {"vocab_size", s.n_vocab},
        {"attention.head_count", s.n_head},
        {"attention.head_count_kv", 1},
        {"attention.key_length", s.head_size},
        {"attention.value_length", s.head_size},
        {"attention.q_lora_rank", s.q_rank},
        {"attention.output_lora_rank", s.o_rank},
        {"attention.output_group_count", s.o_groups},
        {"attention.sliding_window", s.n_window},
        {"attention.indexer.head_count", s.n_index_head},
        {"attention.indexer.key_length", s.index_head},
        {"attention.indexer.top_k", s.index_top_k},
        {"rope.dimension_count", s.rope_size},
        {"rope.scaling.original_context_length", 65536},
        {"expert_count", s.n_expert},
        {"expert_used_count", s.n_expert_used},
        {"expert_shared_count", 1},
        {"expert_feed_forward_length", s.n_ff},
        {"expert_gating_func", 4}, // square root of softplus
        {"hash_layer_count", s.n_hash_layer},
        {"hyper_connection.count", N_STREAM},
        {"hyper_connection.sinkhorn_iterations", 20},
    };
    const std::pair<const char *, float> floats[] = {
        {"attention.layer_norm_rms_epsilon", 1e-6f},
        {"attention.compress_rope_freq_base", 160000.0f},
        {"rope.freq_base", 10000.0f},
        {"rope.scaling.factor", 16.0f},
        {"rope.scaling.yarn_beta_fast", 32.0f},
        {"rope.scaling.yarn_beta_slow", 1.0f},
        {"expert_weights_scale", 1.5f},
        {"hyper_connection.epsilon", 1e-6f},
    };
    gguf_set_val_str(header, "general.architecture", "deepseek4");
    gguf_set_val_str(header, "tokenizer.ggml.model", "none");
    for (const auto & [key, value] : integers) {
        gguf_set_val_u32(header, (p + key).c_str(), value);
    }
    for (const auto & [key, value] : floats) {
        gguf_set_val_f32(header, (p + key).c_str(), value);
    }
    gguf_set_val_str(header, (p + "rope.scaling.type").c_str(), "yarn");
    gguf_set_val_bool(header, (p + "expert_weights_norm").c_str(), true);
    gguf_set_arr_data(header, (p + "attention.compress_ratios").c_str(), GGUF_TYPE_INT32, s.ratios.data(), n_layer);
    gguf_set_arr_data(header, (p + "swiglu_clamp_exp").c_str(), GGUF_TYPE_FLOAT32, limits.data(), n_layer);
    gguf_set_arr_data(header, (p + "swiglu_clamp_shexp").c_str(), GGUF_TYPE_FLOAT32, limits.data(), n_layer);
}

// Why upstream could not run a model of this shape; empty if it can.
static std::string shape_problem(const random_ds4_shape & s) {
    for (const int32_t ratio : s.ratios) {
        if (ratio != 0 && ratio != 4 && ratio != 128) {
            return "a layer has compression ratio " + std::to_string(ratio) + ", known are 0, 4 and 128";
        }
    }
    if (s.ratios.empty() || s.n_hash_layer > s.ratios.size()) {
        return "there must be layers, and at least as many as hash layers";
    }
    if (s.o_groups == 0 || s.n_head % s.o_groups != 0) {
        return "the heads do not divide by the output groups";
    }
    if (s.head_size == s.index_head) {
        return "heads and indexer heads have the same size, which upstream cannot tell apart";
    }
    if (s.index_head % 64 != 0 || s.rope_size > std::min(s.head_size, s.index_head)) {
        return "an indexer head must be a multiple of 64, and no smaller than the rotated part";
    }
    if (s.n_expert_used == 0 || s.n_expert_used > s.n_expert) {
        return "a token must use at least one and at most all experts";
    }
    return "";
}

random_ds4_shape random_ds4_small() {
    random_ds4_shape shape;
    shape.ratios   = {0, 4, 128, 4};
    shape.n_embd   = 256;
    shape.n_vocab  = 128;
    shape.n_head   = 8;
    shape.q_rank   = 256;
    shape.o_rank   = 32;
    shape.n_ff     = 256;
    shape.n_window = 32;
    return shape;
}

ggml_type random_ds4_type(const std::string & name) {
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const char * known = ggml_type_name((ggml_type) type);
        if (known != nullptr && ggml_blck_size((ggml_type) type) > 0 && strcasecmp(known, name.c_str()) == 0) {
            return (ggml_type) type;
        }
    }
    return GGML_TYPE_COUNT;
}

FILE * random_ds4_open(const random_ds4_shape & shape, const random_ds4_types & types, uint64_t seed,
                       std::string & error) {
    error = shape_problem(shape);
    if (!error.empty()) {
        return nullptr;
    }
    auto stream                   = std::make_unique<ring_stream>();
    const ggml_init_params params = {(64 * shape.ratios.size() + 64) * ggml_tensor_overhead(), nullptr, true};
    model_builder b               = {shape, types, seed, *stream};
    b.ctx.reset(ggml_init(params));
    b.header.reset(gguf_init_empty());
    add_keys(b.header.get(), shape);
    add_tensors(b);
    if (!b.error.empty()) {
        error = b.error;
        return nullptr;
    }

    for (const ggml_type type : {types.gate_up, types.down, types.dense, types.embedding}) {
        if (strcmp(ggml_type_name(type), "q2_0_rocmfp2") == 0) { // other programs give its id other meanings
            gguf_set_val_str(b.header.get(), "lucebox.rocmfp2.dialect", "A");
        }
    }
    bytes * header = stream->new_ring(gguf_get_meta_size(b.header.get()));
    gguf_get_meta_data(b.header.get(), header->data());
    for (size_t i = 0; i < stream->parts.size(); i++) {
        stream->parts[i].offset = header->size() + gguf_get_tensor_offset(b.header.get(), i);
    }
    stream->size = GGML_PAD(stream->parts.back().offset + stream->parts.back().size, GGUF_DEFAULT_ALIGNMENT);
    stream->parts.insert(stream->parts.begin(), {0, header->size(), header, 0});
    FILE * file = ring_stream_open(std::move(stream));
    if (file == nullptr) {
        error = "cannot open a stream";
    }
    return file;
}

llama_model * random_ds4_load(const random_ds4_shape & shape, const random_ds4_types & types, uint64_t seed,
                              llama_model_params params, std::string & error) {
    FILE * file = random_ds4_open(shape, types, seed, error);
    if (file == nullptr) {
        return nullptr;
    }
    params.load_mode    = LLAMA_LOAD_MODE_NONE; // there is nothing to map
    llama_model * model = llama_model_load_from_file_ptr(file, params);
    fclose(file);
    if (model == nullptr) {
        error = "llama.cpp refused the model, see its messages";
    }
    return model;
}
