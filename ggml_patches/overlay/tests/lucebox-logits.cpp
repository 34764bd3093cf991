// Writes the logits of every position of given token sequences as raw float32, for comparison with a reference.
//
//   lucebox-logits MODEL.gguf IDS.txt OUT KV_TYPE [UBATCH] [--greedy N] [--device cpu]
//
// IDS.txt holds one sequence a line, token ids separated by spaces; each is evaluated alone, from an empty memory.
// OUT holds rows of n_vocab float32 values, position by position, sequence by sequence. With --greedy it is text
// instead: a line of token ids a sequence, the likeliest continuation, decoded one by one until an end token, which
// is written, or N of them. KV_TYPE: "f32" evaluates without flash attention, the exact path; "f16" as the server
// does by default. All GPUs are used as by default, none with --device cpu. Ids outside the vocabulary are refused.
// Exit code 0, 1 on any failure.

#include "llama.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

struct settings {
    const char * model  = nullptr;
    bool exact          = false;
    bool cpu            = false;
    uint32_t n_ubatch   = 512;
    uint32_t n_continue = 0; // ids to decode greedily; 0 writes logits
};

static bool read_sequences(const char * path, std::vector<std::vector<llama_token>> & sequences) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        std::vector<llama_token> ids;
        for (llama_token id; words >> id;) {
            ids.push_back(id);
        }
        if (ids.empty() || !words.eof()) {
            fprintf(stderr, "%s: line %zu holds no token ids\n", path, sequences.size() + 1);
            return false;
        }
        sequences.push_back(std::move(ids));
    }
    if (sequences.empty()) {
        fprintf(stderr, "%s: cannot be read or is empty\n", path);
    }
    return !sequences.empty();
}

static llama_context * make_context(llama_model * model, size_t n_tokens, const settings & s) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = (uint32_t) n_tokens;
    params.n_batch              = (uint32_t) n_tokens;
    params.n_ubatch             = std::min(s.n_ubatch, (uint32_t) n_tokens);
    params.n_threads            = 1; // several would spin against each other on a shared machine
    params.n_threads_batch      = params.n_threads;
    params.offload_kqv          = !s.cpu;
    params.op_offload           = !s.cpu;
    if (s.exact) {
        params.type_k          = GGML_TYPE_F32;
        params.type_v          = GGML_TYPE_F32;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    }
    return llama_init_from_model(model, params);
}

// Evaluates `ids` behind `n_past` tokens, for the logits of all or of the last.
static bool decode(llama_context * ctx, const std::vector<llama_token> & ids, int32_t n_past, bool all_logits) {
    llama_batch batch = llama_batch_init((int32_t) ids.size(), 0, 1);
    batch.n_tokens    = (int32_t) ids.size();
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        batch.token[i]     = ids[i];
        batch.pos[i]       = n_past + i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i]    = all_logits || i + 1 == batch.n_tokens;
    }
    const bool ok = llama_decode(ctx, batch) == 0;
    llama_batch_free(batch);
    return ok;
}

static bool write_logits(llama_context * ctx, const std::vector<llama_token> & ids, int32_t n_vocab, FILE * out) {
    llama_memory_clear(llama_get_memory(ctx), true);
    bool ok = decode(ctx, ids, 0, true);
    for (int32_t i = 0; ok && i < (int32_t) ids.size(); ++i) {
        const float * row = llama_get_logits_ith(ctx, i);
        ok                = row && fwrite(row, sizeof(float), (size_t) n_vocab, out) == (size_t) n_vocab;
    }
    return ok;
}

static bool write_greedy(llama_context * ctx, const std::vector<llama_token> & ids, const llama_vocab * vocab,
                         uint32_t n_continue, FILE * out) {
    llama_memory_clear(llama_get_memory(ctx), true);
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    std::vector<llama_token> next(ids);
    int32_t n_past = 0;
    for (uint32_t i = 0; i < n_continue; ++i) {
        if (!decode(ctx, next, n_past, false)) {
            return false;
        }
        const float * row = llama_get_logits_ith(ctx, -1);
        n_past += (int32_t) next.size();
        next.assign(1, (llama_token) (std::max_element(row, row + n_vocab) - row));
        fprintf(out, "%s%d", i ? " " : "", next[0]);
        if (llama_vocab_is_eog(vocab, next[0])) {
            break;
        }
    }
    return fprintf(out, "\n") == 1;
}

static bool known_ids(const std::vector<std::vector<llama_token>> & sequences, int32_t n_vocab) {
    for (const auto & ids : sequences) {
        for (const llama_token id : ids) {
            if (id < 0 || id >= n_vocab) {
                fprintf(stderr, "token id %d is outside the vocabulary of %d\n", id, n_vocab);
                return false;
            }
        }
    }
    return true;
}

static bool evaluate(const settings & s, const std::vector<std::vector<llama_token>> & sequences, FILE * out) {
    ggml_backend_dev_t no_devices[] = {nullptr};
    llama_model_params params       = llama_model_default_params();
    if (s.cpu) {
        params.devices      = no_devices;
        params.n_gpu_layers = 0;
    }
    llama_model * model = llama_model_load_from_file(s.model, params);
    if (!model) {
        return false;
    }
    size_t n_longest = 0;
    for (const auto & ids : sequences) {
        n_longest = std::max(n_longest, ids.size());
    }
    const llama_vocab * vocab = llama_model_get_vocab(model);
    const int32_t n_vocab     = llama_vocab_n_tokens(vocab);
    llama_context * ctx       = make_context(model, n_longest + s.n_continue, s);
    bool ok                   = ctx && known_ids(sequences, n_vocab);
    for (size_t i = 0; ok && i < sequences.size(); ++i) {
        ok = s.n_continue ? write_greedy(ctx, sequences[i], vocab, s.n_continue, out)
                          : write_logits(ctx, sequences[i], n_vocab, out);
    }
    llama_free(ctx);
    llama_model_free(model);
    return ok;
}

// Reads what follows OUT; false where something is not understood.
static bool read_settings(int argc, char ** argv, settings & s) {
    if (argc < 5 || (strcmp(argv[4], "f32") != 0 && strcmp(argv[4], "f16") != 0)) {
        return false;
    }
    s.model = argv[1];
    s.exact = strcmp(argv[4], "f32") == 0;
    for (int i = 5; i < argc; ++i) {
        const bool has_value = i + 1 < argc;
        if (i == 5 && atoi(argv[i]) > 0) {
            s.n_ubatch = (uint32_t) atoi(argv[i]);
        } else if (has_value && strcmp(argv[i], "--greedy") == 0 && atoi(argv[i + 1]) > 0) {
            s.n_continue = (uint32_t) atoi(argv[++i]);
        } else if (has_value && strcmp(argv[i], "--device") == 0 && strcmp(argv[i + 1], "cpu") == 0) {
            s.cpu = true;
            ++i;
        } else {
            return false;
        }
    }
    return true;
}

int main(int argc, char ** argv) {
    settings s;
    if (!read_settings(argc, argv, s)) {
        fprintf(stderr, "usage: %s MODEL.gguf IDS.txt OUT f32|f16 [UBATCH] [--greedy N] [--device cpu]\n", argv[0]);
        return 1;
    }
    std::vector<std::vector<llama_token>> sequences;
    if (!read_sequences(argv[2], sequences)) {
        return 1;
    }
    FILE * out = fopen(argv[3], "wb");
    if (!out) {
        perror(argv[3]);
        return 1;
    }
    llama_backend_init();
    bool ok = evaluate(s, sequences, out);
    ok      = fclose(out) == 0 && ok;
    llama_backend_free();
    return ok ? 0 : 1;
}
