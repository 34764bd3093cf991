#include "lucebox-quantize-policy.h"

#include "ggml-rocmfpx.h"
#include "gguf.h"

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <vector>

static const char * const DIALECT_KEY = "lucebox.rocmfp2.dialect";
static const char * const DIALECT     = "A";
static const char * const SEARCH_KEY  = "lucebox.quantize.search";

// DeepSeek-V4 and its DSpark drafter. Mixing matrices, position biases, compressors, router and indexer weights
// are small and steer everything; the drafter's Markov and confidence heads decide what is proposed.
static const char * const PROTECTED_ARCHS[] = {"deepseek4", "dflash"};
static const char * const PROTECTED_PARTS[] = {
    "hc_",           "_ape.",    "compressor_kv.", "compressor_gate.", "indexer.proj.",
    "ffn_gate_inp.", "tid2eid.", "markov_w",       "conf_proj.",
};

bool lucebox_quantize_protects(const std::string & arch, const std::string & tensor_name) {
    for (const char * protected_arch : PROTECTED_ARCHS) {
        if (arch != protected_arch) {
            continue;
        }
        for (const char * part : PROTECTED_PARTS) {
            if (tensor_name.find(part) != std::string::npos) {
                return true;
            }
        }
    }
    return false;
}

namespace {

// What a tensor does. A part of a name decides, the first that matches.
enum role {
    TOKEN_EMBD,
    OUTPUT,
    DRAFT_PROJ, // joins hidden state and token of an MTP head or a drafter
    ATTN_QKV,
    ATTN_K,
    ATTN_V,
    ATTN_Q,
    ATTN_OUT,
    EXPERT_DOWN, // routed experts; in a model without experts its only FFN
    EXPERT_GATE,
    EXPERT_UP,
    FFN_DOWN, // every other FFN, shared experts too
    FFN_GATE,
    FFN_UP,
    REST,
};

// One exception of a file type: `type`, or `in_layers` another one.
struct preset_entry {
    enum role role;
    ggml_type type;
    bool (*layers)(int i, int n) = nullptr;
    ggml_type in_layers          = GGML_TYPE_COUNT;
};

struct preset {
    llama_ftype ftype;
    ggml_type rest;
    std::vector<preset_entry> exceptions;
};

} // namespace

// clang-format off
static const struct {
    const char * part;
    enum role role;
} ROLES[] = {
    { "token_embd.weight",            TOKEN_EMBD  },
    { "nextn.eh_proj.weight",         DRAFT_PROJ  },
    { "nextn.pre_projection.weight",  DRAFT_PROJ  },
    { "nextn.post_projection.weight", DRAFT_PROJ  },
    { "attn_qkv.weight",              ATTN_QKV    },
    { "attn_kv_b.weight",             ATTN_V      },
    { "attn_k.weight",                ATTN_K      },
    { "attn_v.weight",                ATTN_V      },
    { "attn_q.weight",                ATTN_Q      },
    { "attn_output.weight",           ATTN_OUT    },
    { "ffn_down_exps",                EXPERT_DOWN },
    { "ffn_gate_exps",                EXPERT_GATE },
    { "ffn_up_exps",                  EXPERT_UP   },
    { "ffn_down",                     FFN_DOWN    },
    { "ffn_gate",                     FFN_GATE    },
    { "ffn_up",                       FFN_UP      },
};
// clang-format on

static enum role role_of(const std::string & name) {
    if (name == "output.weight") {
        return OUTPUT;
    }
    if (name == "fc.weight") {
        return DRAFT_PROJ;
    }
    for (const auto & entry : ROLES) {
        if (name.find(entry.part) != std::string::npos) {
            return entry.role;
        }
    }
    return REST;
}

// Layers that a preset treats better. i: layer, n: layers of the model.
static bool more_bits(int i, int n) {
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}
static bool first_half(int i, int n) {
    return i < n / 2;
}
static bool first_16th(int i, int n) {
    return i < n / 16;
}
static bool last_third(int i, int n) {
    return i >= 2 * n / 3;
}
static bool both_ends(int i, int n) {
    return i < n / 16 || i >= 7 * n / 8;
}
static bool first_16th_or_more_bits(int i, int n) {
    return i < n / 16 || more_bits(i, n);
}
static bool first_16th_last_third_or_more_bits(int i, int n) {
    return first_16th_or_more_bits(i, n) || last_third(i, n);
}

#define FTYPE(suffix) LLAMA_FTYPE_MOSTLY_##suffix

static const ggml_type FP2      = GGML_TYPE_Q2_0_ROCMFP2;
static const ggml_type FP3      = GGML_TYPE_Q3_0_ROCMFPX;
static const ggml_type FP4      = GGML_TYPE_Q4_0_ROCMFP4;
static const ggml_type FP4_FAST = GGML_TYPE_Q4_0_ROCMFP4_FAST;
static const ggml_type FP6      = GGML_TYPE_Q6_0_ROCMFPX;
static const ggml_type FP8      = GGML_TYPE_Q8_0_ROCMFPX;
static const ggml_type Q4_K     = GGML_TYPE_Q4_K;
static const ggml_type Q5_K     = GGML_TYPE_Q5_K;
static const ggml_type Q6_K     = GGML_TYPE_Q6_K;
static const ggml_type Q8_0     = GGML_TYPE_Q8_0;

// clang-format off
// An FFN_* entry holds for EXPERT_* too unless the preset has an entry for that.
static const std::vector<preset> & presets() {
    static const std::vector<preset> table = {
        { FTYPE(Q4_0_ROCMFP4), FP4, {
            { OUTPUT, Q6_K }, { ATTN_V, Q5_K }, { ATTN_OUT, Q5_K },
            { FFN_DOWN, Q6_K, last_third, Q5_K }, { FFN_GATE, FP4, more_bits, Q5_K },
        } },
        { FTYPE(Q4_0_ROCMFP4_LEAN), FP4, { { TOKEN_EMBD, Q5_K } } },
        { FTYPE(Q4_0_ROCMFP4_COHERENT), FP4, { { TOKEN_EMBD, Q6_K } } },
        { FTYPE(Q4_0_ROCMFP4_FAST), FP4_FAST, {} },
        { FTYPE(Q4_0_ROCMFP4_FAST_COHERENT), FP4_FAST, { { TOKEN_EMBD, Q6_K } } },
        { FTYPE(Q4_0_ROCMFP4_STRIX), FP4_FAST, { { TOKEN_EMBD, Q6_K }, { ATTN_K, FP4 }, { ATTN_V, FP4 } } },
        { FTYPE(Q4_0_ROCMFP4_STRIX_LEAN), FP4_FAST, { { TOKEN_EMBD, Q5_K }, { ATTN_K, FP4 }, { ATTN_V, FP4 } } },
        { FTYPE(Q6_0_ROCMFPX), FP6, {
            { ATTN_K, FP6, first_16th, FP8 }, { ATTN_V, FP6, first_16th, FP8 },
            { ATTN_Q, FP6, first_16th, FP8 }, { ATTN_OUT, FP6, first_16th, FP8 },
            { ATTN_QKV, FP8 }, { FFN_DOWN, FP6, both_ends, FP8 },
        } },
        { FTYPE(Q8_0_ROCMFPX), FP8, { { ATTN_QKV, Q8_0 } } },
        { FTYPE(Q3_0_ROCMFPX), FP3, {
            { TOKEN_EMBD, FP4_FAST }, { OUTPUT, FP4_FAST },
            { ATTN_K, Q4_K, first_half, Q5_K }, { ATTN_V, Q4_K, first_half, Q5_K },
            { ATTN_Q, Q5_K }, { ATTN_OUT, Q5_K }, { ATTN_QKV, Q4_K },
            { FFN_DOWN, FP3, first_16th_last_third_or_more_bits, Q5_K },
            { FFN_GATE, FP3, first_16th_or_more_bits, FP6 },
        } },
        { FTYPE(Q2_0_ROCMFP2), FP2, { { OUTPUT, Q6_K } } },
        { FTYPE(Q2_0_ROCMFP2_STRIX), FP4_FAST, {
            { TOKEN_EMBD, Q6_K }, { ATTN_K, FP4 }, { ATTN_V, FP4 },
            { EXPERT_GATE, FP2 }, { EXPERT_UP, FP2 }, { EXPERT_DOWN, FP3 },
        } },
    };
    return table;
}
// clang-format on

static const preset_entry * find_exception(const preset & preset, enum role role) {
    for (const preset_entry & entry : preset.exceptions) {
        if (entry.role == role) {
            return &entry;
        }
    }
    return nullptr;
}

// The exception that holds for a role, if any. A model without experts has its weight in plain FFNs.
static const preset_entry * choose(const preset & preset, enum role role, int n_expert) {
    static const struct {
        enum role expert;
        enum role ffn;
    } PAIRS[] = {{EXPERT_DOWN, FFN_DOWN}, {EXPERT_GATE, FFN_GATE}, {EXPERT_UP, FFN_UP}};
    for (const auto & pair : PAIRS) {
        if (role == pair.expert || (role == pair.ffn && n_expert == 0)) {
            const preset_entry * found = find_exception(preset, pair.expert);
            return found ? found : find_exception(preset, pair.ffn);
        }
    }
    return find_exception(preset, role);
}

static int layer_of(const std::string & name) {
    int layer = -1;
    return sscanf(name.c_str(), "blk.%d.", &layer) == 1 ? layer : -1;
}

static bool below_5_bits(ggml_type type) {
    return type == FP2 || type == FP3 || type == FP4 || type == FP4_FAST;
}

ggml_type lucebox_quantize_type(llama_ftype ftype, int n_layer, int n_expert, const std::string & tensor_name,
                                ggml_type proposed) {
    const enum role role = role_of(tensor_name);
    for (const preset & preset : presets()) {
        if (preset.ftype != ftype) {
            continue;
        }
        ggml_type type = preset.rest;
        if (const preset_entry * found = choose(preset, role, n_expert)) {
            const int layer = layer_of(tensor_name);
            type = layer >= 0 && found->layers && found->layers(layer, n_layer) ? found->in_layers : found->type;
        }
        return role == DRAFT_PROJ && below_5_bits(type) ? Q8_0 : type;
    }
    return proposed;
}

bool lucebox_quantize_search(const llama_model_kv_override * overrides, gguf_context * keys) {
    for (const auto * o = overrides; o && o->key[0]; ++o) {
        if (strcmp(o->key, SEARCH_KEY) == 0 && o->tag == LLAMA_KV_OVERRIDE_TYPE_BOOL && o->val_bool) {
            return true; // llama-quantize wrote the key already
        }
    }
    gguf_remove_key(keys, SEARCH_KEY); // of the file that is read
    return false;
}

static bool is_rocmfpx(ggml_type type) {
#define IS_TYPE(id, suffix, stem, name, bytes) type == GGML_TYPE_##suffix ||
    return ROCMFPX_TYPES(IS_TYPE) false;
#undef IS_TYPE
}

size_t lucebox_quantize_chunk(bool search, ggml_type type, const float * src, void * dst, int64_t n_rows,
                              int64_t n_per_row, const float * imatrix) {
    if (search && is_rocmfpx(type)) {
        return rocmfpx_quantize_search(type, src, dst, n_rows, n_per_row, imatrix);
    }
    return ggml_quantize_chunk(type, src, dst, 0, n_rows, n_per_row, imatrix);
}

void lucebox_quantize_dialect::add(ggml_type read, ggml_type written) {
    reads |= read == FP2;
    writes |= written == FP2;
}

void lucebox_quantize_dialect::finish(gguf_context * keys) const {
    const int64_t id = gguf_find_key(keys, DIALECT_KEY);
    const bool ours =
        id >= 0 && gguf_get_kv_type(keys, id) == GGUF_TYPE_STRING && strcmp(gguf_get_val_str(keys, id), DIALECT) == 0;
    if (reads && !ours) {
        throw std::runtime_error(std::string("tensors of type ") + ggml_type_name(FP2) +
                                 " may be of another dialect: " + "the file has no key " + DIALECT_KEY + " = " +
                                 DIALECT + "; `lucebox quantize` examines them");
    }
    if (writes) {
        gguf_set_val_str(keys, DIALECT_KEY, DIALECT);
    } else {
        gguf_remove_key(keys, DIALECT_KEY);
    }
}
