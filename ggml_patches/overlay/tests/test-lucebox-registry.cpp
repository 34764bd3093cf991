// Owns: what files and peers rely on: ids, names and sizes of our types, file types and ops; and that an id
// without a type, in a table or in a file, is refused and not divided by.

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-rocmfpx.h"
#include "ggml.h"
#include "gguf.h"
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define ROCMFPX_CASE_LABEL(id, suffix, stem, name, bytes) case GGML_TYPE_##suffix:

static int failures = 0;

static void check(bool ok, const std::string & what) {
    if (!ok) {
        fprintf(stderr, "FAILED: %s\n", what.c_str());
        failures++;
    }
}

// Written out, not taken from the list under test.
struct type_promise {
    int id;
    const char * name;
    size_t bytes;
};

static const type_promise TYPES[] = {
    {100, "q4_0_rocmfp4", 18}, {101, "q4_0_rocmfp4_fast", 17}, {102, "q6_0_rocmfpx", 26},
    {103, "q8_0_rocmfpx", 33}, {104, "q3_0_rocmfpx", 14},      {107, "q2_0_rocmfp2", 10},
};

struct ftype_promise {
    int id;
    const char * name;
    int type;
};

static const ftype_promise FTYPES[] = {
    {100, "Q4_0_ROCMFP4", 100},
    {101, "Q4_0_ROCMFP4_LEAN", 100},
    {102, "Q4_0_ROCMFP4_COHERENT", 100},
    {103, "Q4_0_ROCMFP4_FAST", 101},
    {104, "Q4_0_ROCMFP4_FAST_COHERENT", 101},
    {105, "Q4_0_ROCMFP4_STRIX", 101},
    {106, "Q4_0_ROCMFP4_STRIX_LEAN", 101},
    {110, "Q6_0_ROCMFPX", 102},
    {111, "Q8_0_ROCMFPX", 103},
    {112, "Q3_0_ROCMFPX", 104},
    {118, "Q2_0_ROCMFP2", 107},
    {119, "Q2_0_ROCMFP2_STRIX", 107},
};

static_assert(GGML_TYPE_COUNT == 108, "one past the last id");
static_assert(GGML_TYPE_UPSTREAM_COUNT <= ROCMFPX_TYPE_FIRST, "upstream's type ids have reached ours");
static_assert(GGML_OP_DS4_COMPRESS + 1 == GGML_OP_COUNT && GGML_OP_DS4_HC + 1 == GGML_OP_DS4_COMPRESS,
              "our ops are the last ones, so that upstream's keep their numbers");

static void test_types() {
    for (const auto & p : TYPES) {
        const auto type      = (ggml_type) p.id;
        const auto * traits  = ggml_get_type_traits(type);
        const auto * cpu     = ggml_get_type_traits_cpu(type);
        const std::string id = "type " + std::to_string(p.id);
        check(traits->type_name && strcmp(traits->type_name, p.name) == 0, id + ": name");
        check(ggml_blck_size(type) == 32 && ggml_type_size(type) == p.bytes, id + ": block");
        check(ggml_row_size(type, 4096) == 128 * p.bytes, id + ": row bytes");
        check(ggml_is_quantized(type), id + ": quantized");
        check(traits->to_float && traits->from_float_ref, id + ": codec");
        check(cpu->vec_dot && cpu->from_float && cpu->vec_dot_type == GGML_TYPE_Q8_0, id + ": dot product");
    }
}

static void test_ftypes() {
    for (const auto & p : FTYPES) {
        const std::string id = "ftype " + std::to_string(p.id);
        check(ggml_ftype_to_ggml_type((ggml_ftype) p.id) == (ggml_type) p.type, id + ": tensor type");
        check(strcmp(llama_ftype_name((llama_ftype) p.id), p.name) == 0, id + ": name");
        const std::string guessed = std::string("(guessed) ") + p.name;
        check(llama_ftype_name((llama_ftype) (p.id | LLAMA_FTYPE_GUESSED)) == guessed, id + ": guessed name");
    }
}

static bool is_ours(int id) {
    for (const auto & p : TYPES) {
        if (p.id == id) {
            return true;
        }
    }
    return false;
}

// Every id can be asked for its name and sizes, and a row of an id without a type is never valid.
static void test_holes() {
    const uint8_t row[64] = {0};
    int holes             = 0;
    for (int id = 0; id < GGML_TYPE_COUNT; id++) {
        const auto type        = (ggml_type) id;
        const bool hole        = ggml_blck_size(type) == 0;
        const std::string what = "id " + std::to_string(id);
        if (id >= GGML_TYPE_UPSTREAM_COUNT) {
            check(hole != is_ours(id), what + ": a type where the list has one, else a hole");
        }
        if (hole) {
            holes++;
            check(ggml_type_size(type) == 0 && !ggml_is_quantized(type), what + ": hole with a size");
            check(ggml_get_type_traits(type)->to_float == nullptr, what + ": hole with a decoder");
            check(!ggml_validate_row_data(type, row, sizeof(row)), what + ": row of no type is valid");
        } else {
            check(ggml_type_name(type) != nullptr, what + ": name");
        }
    }
    check(holes >= 59, "ids 43..99, 105 and 106 are holes");
}

static void test_validation() {
    for (const auto & p : TYPES) {
        std::vector<uint8_t> rows(3 * p.bytes, 0);
        const auto type = (ggml_type) p.id;
        check(ggml_validate_row_data(type, rows.data(), rows.size()), std::string(p.name) + ": zeros are valid");
        check(!ggml_validate_row_data(type, rows.data(), rows.size() - 1), std::string(p.name) + ": part of a block");
        rows[3 * p.bytes - 1] = 0x7f; // last scale byte
        check(!ggml_validate_row_data(type, rows.data(), rows.size()), std::string(p.name) + ": scale byte 0x7f");
        rows[3 * p.bytes - 1] = 0x7e;
        check(ggml_validate_row_data(type, rows.data(), rows.size()), std::string(p.name) + ": scale byte 0x7e");
    }
}

// One tensor of 64 x 2 values and id `type`, as a GGUF file.
static std::vector<uint8_t> gguf_with_type(uint32_t type) {
    std::vector<uint8_t> out;
    auto put = [&](const void * data, size_t size) {
        out.insert(out.end(), (const uint8_t *) data, (const uint8_t *) data + size);
    };
    auto put64 = [&](uint64_t value) { put(&value, 8); };
    auto put32 = [&](uint32_t value) { put(&value, 4); };
    put("GGUF", 4), put32(3), put64(1), put64(0);
    put64(11), put("blk.0.probe", 11), put32(2), put64(64), put64(2), put32(type), put64(0);
    out.resize(4096, 0);
    return out;
}

static std::string last_error;

static void keep_errors(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        last_error += text;
    }
}

static bool reads(uint32_t type) {
    FILE * file      = tmpfile();
    const auto bytes = gguf_with_type(type);
    check(file && fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size(), "temporary file");
    rewind(file);
    last_error.clear();
    ggml_log_set(keep_errors, nullptr);
    ggml_context * tensors = nullptr;
    gguf_context * gguf    = gguf_init_from_file_ptr(file, {/*.no_alloc =*/true, /*.ctx =*/&tensors});
    ggml_log_set(nullptr, nullptr);
    fclose(file);
    const bool ok = gguf != nullptr;
    gguf_free(gguf);
    ggml_free(tensors);
    return ok;
}

static void test_files() {
    for (const auto & p : TYPES) {
        check(reads(p.id), std::string(p.name) + ": file is read");
    }
    for (const uint32_t id : {4u, 31u, 43u, 99u, 105u, 106u, 108u, 250u, 1u << 31, 0xffffffffu}) {
        const std::string what = "file with type " + std::to_string(id);
        check(!reads(id), what + ": read");
        check(last_error.find("blk.0.probe") != std::string::npos, what + ": refusal names the tensor");
        check(last_error.find(std::to_string(id)) != std::string::npos, what + ": refusal names the id");
    }
}

// What the CPU back-end answers when a scheduler asks.
static void test_cpu_support() {
    ggml_context * ctx     = ggml_init({1 << 20, nullptr, /*.no_alloc =*/true});
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_tensor * x        = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 3);
    ggml_tensor * ids      = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 3);
    for (const auto & p : TYPES) {
        ggml_tensor * w = ggml_new_tensor_2d(ctx, (ggml_type) p.id, 64, 4);
        check(ggml_backend_dev_supports_op(cpu, ggml_mul_mat(ctx, w, x)), std::string(p.name) + ": mul_mat");
        check(ggml_backend_dev_supports_op(cpu, ggml_get_rows(ctx, w, ids)), std::string(p.name) + ": get_rows");
        check(ggml_backend_dev_supports_op(cpu, ggml_cpy(ctx, w, w)), std::string(p.name) + ": copy");
        check(!ggml_backend_dev_supports_op(cpu, ggml_concat(ctx, w, w, 1)), std::string(p.name) + ": concat");
    }
    for (const ggml_op op : {GGML_OP_DS4_HC, GGML_OP_DS4_COMPRESS}) {
        ggml_tensor * t = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 3);
        t->op = op, t->src[0] = x;
        check(!ggml_backend_dev_supports_op(cpu, t), std::string(ggml_op_name(op)) + ": no code yet");
    }
    ggml_free(ctx);
}

static void test_ops() {
    check(strcmp(ggml_op_name(GGML_OP_DS4_HC), "DS4_HC") == 0, "name of DS4_HC");
    check(strcmp(ggml_op_name(GGML_OP_DS4_COMPRESS), "DS4_COMPRESS") == 0, "name of DS4_COMPRESS");
    for (int op = 0; op < GGML_OP_COUNT; op++) {
        check(ggml_op_name((ggml_op) op) && ggml_op_symbol((ggml_op) op), "op " + std::to_string(op) + ": named");
    }
}

int main() {
    test_types();
    test_ftypes();
    test_holes();
    test_validation();
    test_files();
    test_cpu_support();
    test_ops();
    printf("%s\n", failures == 0 ? "ok" : "failed");
    return failures == 0 ? 0 : 1;
}
