// libFuzzer target: a GGUF header from memory, its keys read as a loader reads them, then the data of every
// tensor through ggml's check of rows, which is ours for our types, and through our decoders.

#include "ggml-rocmfpx.h"
#include "ggml.h"
#include "gguf.h"

#include <cstddef>
#include <cstdint>
#include <vector>

static constexpr size_t MAX_VALUES = 1 << 16; // decoded of one tensor: the input is small, its shapes may not be

static void silence(ggml_log_level, const char *, void *) {}

static size_t read_keys(const gguf_context * gguf) {
    size_t sum = gguf_find_key(gguf, "general.alignment") + gguf_get_alignment(gguf) + gguf_get_version(gguf);
    for (int64_t i = 0; i < gguf_get_n_kv(gguf); i++) {
        const gguf_type type = gguf_get_kv_type(gguf, i);
        if (type == GGUF_TYPE_STRING) {
            sum += gguf_get_val_str(gguf, i)[0];
        } else if (type != GGUF_TYPE_ARRAY) {
            sum += *(const uint8_t *) gguf_get_val_data(gguf, i);
        } else if (gguf_get_arr_type(gguf, i) == GGUF_TYPE_STRING) {
            for (size_t j = 0; j < gguf_get_arr_n(gguf, i); j++) {
                sum += gguf_get_arr_str(gguf, i, j)[0];
            }
        } else if (gguf_get_arr_n(gguf, i) > 0) {
            sum += ((const uint8_t *) gguf_get_arr_data(gguf, i))[gguf_get_arr_n(gguf, i) - 1];
        }
    }
    return sum;
}

static void read_tensor(const ggml_tensor * tensor, const uint8_t * data, size_t size) {
    ggml_validate_row_data(tensor->type, data, size);
    const ggml_to_float_t decode = ggml_get_type_traits(tensor->type)->to_float;
    const int64_t values         = ggml_nelements(tensor);
    if (tensor->type >= ROCMFPX_TYPE_FIRST && decode && values > 0 && (size_t) values <= MAX_VALUES) {
        static std::vector<float> decoded(MAX_VALUES);
        decode(data, decoded.data(), values);
    }
}

extern "C" int LLVMFuzzerInitialize(int *, char ***) {
    ggml_log_set(silence, nullptr);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    ggml_context * tensors  = nullptr;
    gguf_init_params params = {/*.no_alloc =*/true, /*.ctx =*/&tensors};
    gguf_context * gguf     = gguf_init_from_buffer(data, size, params);
    if (!gguf) {
        return 0;
    }
    volatile size_t sum = read_keys(gguf);
    (void) sum;
    for (ggml_tensor * t = ggml_get_first_tensor(tensors); t; t = ggml_get_next_tensor(tensors, t)) {
        const int64_t index = gguf_find_tensor(gguf, t->name);
        const size_t start  = gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, index);
        const size_t bytes  = ggml_nbytes(t);
        if (start <= size && bytes <= size - start) {
            // a copy of its own, so that a read past the tensor's end is seen
            const std::vector<uint8_t> copy(data + start, data + start + bytes);
            read_tensor(t, copy.data(), copy.size());
        }
    }
    ggml_free(tensors);
    gguf_free(gguf);
    return 0;
}
