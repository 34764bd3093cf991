#pragma once

// Owns: which tensor type each tensor of a ROCmFPX file type gets, which tensors of a DeepSeek-V4 model are never
// quantised, which encoder runs, and the key that names the dialect of type 107. llama-quant.cpp asks here; `lucebox
// quantize` runs llama-quantize, and pylucebox/formats/presets.py mirrors the part that conversion needs (a test
// compares them).

#include "ggml.h"
#include "llama.h"

#include <string>

struct gguf_context;

// True for a tensor that stays as stored in every file type: its rounding error reaches every token of a
// DeepSeek-V4 model, or it is read by ops that take no quantised type. arch: as in general.architecture.
bool lucebox_quantize_protects(const std::string & arch, const std::string & tensor_name);

// The type of a tensor in a file of type ftype, before its shape is considered. n_layer, n_expert: of the model.
// proposed: what upstream would take, and the result for a file type that is not ours. Tied embeddings follow the
// rule of the token embedding.
ggml_type lucebox_quantize_type(llama_ftype ftype, int n_layer, int n_expert, const std::string & tensor_name,
                                ggml_type proposed);

// Whether the caller asked for the opt-in encoder with the override lucebox.quantize.search = true; keys, of the file
// to write, say so then and do not otherwise.
bool lucebox_quantize_search(const llama_model_kv_override * overrides, gguf_context * keys);

// As ggml_quantize_chunk from row 0, with the opt-in encoder for our types when search is true.
size_t lucebox_quantize_chunk(bool search, ggml_type type, const float * src, void * dst, int64_t n_rows,
                              int64_t n_per_row, const float * imatrix);

// Watches the types of the tensors read and written, then labels the file. Other programs store other things under
// type 107, so a file of ours says which dialect it holds.
class lucebox_quantize_dialect {
  public:
    void add(ggml_type read, ggml_type written);

    // keys: those of the file to write, with the ones of the file that is read.
    // Throws when tensors of type 107 are read whose dialect is not known to be ours.
    void finish(gguf_context * keys) const;

  private:
    bool reads  = false;
    bool writes = false;
};
