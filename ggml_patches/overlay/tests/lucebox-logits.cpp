// Writes the logits of every position of given token sequences as raw float32, for comparison with a reference.
//
//   lucebox-logits MODEL.gguf IDS.txt OUT.f32 KV_TYPE [UBATCH]
//
// IDS.txt holds one sequence a line, token ids separated by spaces; each is evaluated alone, from an empty memory.
// OUT.f32 holds rows of n_vocab values, position by position, sequence by sequence. KV_TYPE: "f32" evaluates without
// flash attention, the exact path; "f16" as the server does by default. It samples nothing and refuses ids outside
// the vocabulary. Exit code 0, 1 on any failure.

#include "llama.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

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

static llama_context * make_context(llama_model * model, size_t n_tokens, bool exact, uint32_t n_ubatch) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx                = (uint32_t) n_tokens;
    params.n_batch              = (uint32_t) n_tokens;
    params.n_ubatch             = std::min(n_ubatch, (uint32_t) n_tokens);
    params.n_threads            = 1; // several would spin against each other on a shared machine
    params.n_threads_batch      = params.n_threads;
    if (exact) {
        params.type_k          = GGML_TYPE_F32;
        params.type_v          = GGML_TYPE_F32;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    }
    return llama_init_from_model(model, params);
}

static bool write_logits(llama_context * ctx, const std::vector<llama_token> & ids, int32_t n_vocab, FILE * out) {
    llama_memory_clear(llama_get_memory(ctx), true);
    llama_batch batch = llama_batch_init((int32_t) ids.size(), 0, 1);
    batch.n_tokens    = (int32_t) ids.size();
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        batch.token[i]     = ids[i];
        batch.pos[i]       = i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i]    = true;
    }
    bool ok = llama_decode(ctx, batch) == 0;
    for (int32_t i = 0; ok && i < batch.n_tokens; ++i) {
        const float * row = llama_get_logits_ith(ctx, i);
        ok                = row && fwrite(row, sizeof(float), (size_t) n_vocab, out) == (size_t) n_vocab;
    }
    llama_batch_free(batch);
    return ok;
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

static bool evaluate(const char * model_path, const std::vector<std::vector<llama_token>> & sequences, FILE * out,
                     bool exact, uint32_t n_ubatch) {
    llama_model * model = llama_model_load_from_file(model_path, llama_model_default_params());
    if (!model) {
        return false;
    }
    size_t n_longest = 0;
    for (const auto & ids : sequences) {
        n_longest = std::max(n_longest, ids.size());
    }
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_context * ctx   = make_context(model, n_longest, exact, n_ubatch);
    bool ok               = ctx && known_ids(sequences, n_vocab);
    for (size_t i = 0; ok && i < sequences.size(); ++i) {
        ok = write_logits(ctx, sequences[i], n_vocab, out);
    }
    llama_free(ctx);
    llama_model_free(model);
    return ok;
}

int main(int argc, char ** argv) {
    const bool exact = argc > 4 && strcmp(argv[4], "f32") == 0;
    if (argc < 5 || argc > 6 || (!exact && strcmp(argv[4], "f16") != 0)) {
        fprintf(stderr, "usage: %s MODEL.gguf IDS.txt OUT.f32 f32|f16 [UBATCH]\n", argv[0]);
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
    const int n_ubatch = argc > 5 ? atoi(argv[5]) : 512;
    bool ok            = n_ubatch > 0 && evaluate(argv[1], sequences, out, exact, (uint32_t) n_ubatch);
    ok                 = fclose(out) == 0 && ok;
    llama_backend_free();
    return ok ? 0 : 1;
}
