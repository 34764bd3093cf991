// A column is one activation row and the place of its result. Both ops become a list of columns, sorted by the
// weight matrix they meet, and a list of groups: up to four panels of columns that share a matrix, so that
// their activations stay in the second-level cache while bands of weights stream past. A piece of work is one
// group times a run of bands. Every column gets the same bits whatever it is grouped with.

#include "rocmfpx-matmul.h"

#include "ggml-cpu.h"
#include "ggml-rocmfpx/dot.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr int64_t GROUP_COLUMNS = 4 * ROCMFPX_PANEL;

struct column {
    const float * src;
    float * dst;
};

struct group {
    const uint8_t * weights;
    int64_t first; // column
    int64_t count; // columns
};

// The parts of the work buffer. Sizes are known before the graph runs; the rest is filled in by the threads.
struct plan {
    int format;
    int64_t k;
    int64_t n_blocks;
    int64_t n_columns;
    int64_t max_groups;
    size_t row_bytes; // of weights
    size_t q8_bytes;  // of one activation row
    size_t size;
    ggml_from_float_t quantize;

    // offsets
    size_t at_columns;
    size_t at_groups;
    size_t at_counts; // per expert, then the number of groups
    size_t at_q8;
    size_t at_panels;
};

int64_t groups_of(int64_t columns) {
    return (columns + GROUP_COLUMNS - 1) / GROUP_COLUMNS;
}

plan make_plan(const ggml_tensor * op, int n_threads) {
    const ggml_tensor * weights = op->src[0];
    const ggml_tensor * act     = op->src[1];

    plan p            = {rocmfpx_format_of(weights->type),
                         weights->ne[0],
                         weights->ne[0] / QK_ROCMFPX,
                         0,
                         0,
                         ggml_row_size(weights->type, weights->ne[0]),
                         ggml_row_size(GGML_TYPE_Q8_0, weights->ne[0]),
                         0,
                         ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float,
                         0,
                         0,
                         0,
                         0,
                         0};
    int64_t n_experts = 0;
    if (op->op == GGML_OP_MUL_MAT_ID) {
        n_experts    = weights->ne[2];
        p.n_columns  = ggml_nelements(op->src[2]);
        p.max_groups = std::min(n_experts, p.n_columns) + groups_of(p.n_columns);
    } else {
        p.n_columns  = ggml_nrows(act);
        p.max_groups = act->ne[2] * act->ne[3] * groups_of(act->ne[1]);
    }

    size_t at    = 0;
    auto reserve = [&at](size_t bytes) {
        const size_t start = at;
        at += GGML_PAD(bytes, 64);
        return start;
    };
    p.at_columns = reserve(sizeof(column) * p.n_columns);
    p.at_groups  = reserve(sizeof(group) * p.max_groups);
    p.at_counts  = reserve(sizeof(int64_t) * (n_experts + 1));
    p.at_q8      = reserve(GGML_PAD(p.q8_bytes, 64) * n_threads);
    p.at_panels  = reserve(sizeof(rocmfpx_act) * p.n_blocks * p.n_columns);
    p.size       = at + 64;
    return p;
}

struct work {
    column * columns;
    group * groups;
    int64_t * counts;
    uint8_t * q8; // of this thread
    rocmfpx_act * panels;
};

work place(const plan & p, const ggml_compute_params * params) {
    uint8_t * base = (uint8_t *) GGML_PAD((uintptr_t) params->wdata, 64);
    return {(column *) (base + p.at_columns), (group *) (base + p.at_groups), (int64_t *) (base + p.at_counts),
            base + p.at_q8 + GGML_PAD(p.q8_bytes, 64) * params->ith, (rocmfpx_act *) (base + p.at_panels)};
}

template <typename T> T * element(const ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
    return (T *) ((char *) t->data + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3]);
}

void add_groups(work & w, int64_t & n_groups, const uint8_t * weights, int64_t first, int64_t count) {
    for (int64_t c = 0; c < count; c += GROUP_COLUMNS) {
        w.groups[n_groups++] = {weights, first + c, std::min(GROUP_COLUMNS, count - c)};
    }
}

// Column c of MUL_MAT is row c of the activations in memory order, so each thread can fill in its own.
void list_mul_mat(const plan & p, work & w, const ggml_compute_params * params, const ggml_tensor * op) {
    const ggml_tensor * weights = op->src[0];
    const ggml_tensor * act     = op->src[1];
    for (int64_t c = params->ith; c < p.n_columns; c += params->nth) {
        const int64_t i1 = c % act->ne[1];
        const int64_t i2 = c / act->ne[1] % act->ne[2];
        const int64_t i3 = c / act->ne[1] / act->ne[2];
        w.columns[c]     = {element<const float>(act, i1, i2, i3), element<float>(op, i1, i2, i3)};
    }
    if (params->ith == 0) {
        int64_t n_groups = 0;
        for (int64_t plane = 0; plane < act->ne[2] * act->ne[3]; ++plane) {
            const int64_t i2 = plane % act->ne[2] / (act->ne[2] / weights->ne[2]);
            const int64_t i3 = plane / act->ne[2] / (act->ne[3] / weights->ne[3]);
            add_groups(w, n_groups, element<const uint8_t>(weights, 0, i2, i3), plane * act->ne[1], act->ne[1]);
        }
        w.counts[0] = n_groups;
    }
}

// Columns of MUL_MAT_ID sorted by expert, in token order within one.
void list_mul_mat_id(work & w, const ggml_tensor * op) {
    const ggml_tensor * weights = op->src[0];
    const ggml_tensor * act     = op->src[1];
    const ggml_tensor * ids     = op->src[2];
    const int64_t n_experts     = weights->ne[2];

    int64_t * next = w.counts; // count of each expert, then its next free column
    std::fill(next, next + n_experts, 0);
    for (int64_t token = 0; token < ids->ne[1]; ++token) {
        for (int64_t slot = 0; slot < ids->ne[0]; ++slot) {
            const int32_t expert =
                *(const int32_t *) ((const char *) ids->data + token * ids->nb[1] + slot * ids->nb[0]);
            GGML_ASSERT(expert >= 0 && expert < n_experts);
            next[expert]++;
        }
    }
    int64_t n_groups = 0;
    int64_t first    = 0;
    for (int64_t e = 0; e < n_experts; ++e) {
        const int64_t count = next[e];
        add_groups(w, n_groups, element<const uint8_t>(weights, 0, e, 0), first, count);
        next[e] = first;
        first += count;
    }
    for (int64_t token = 0; token < ids->ne[1]; ++token) {
        for (int64_t slot = 0; slot < ids->ne[0]; ++slot) {
            const int32_t expert =
                *(const int32_t *) ((const char *) ids->data + token * ids->nb[1] + slot * ids->nb[0]);
            w.columns[next[expert]++] = {element<const float>(act, slot % act->ne[1], token, 0),
                                         element<float>(op, slot, token, 0)};
        }
    }
    w.counts[n_experts] = n_groups;
}

// Panel of column c of a group: panels follow each other, the last one as wide as what is left.
struct panel {
    rocmfpx_act * act;
    int width;
};

panel panel_at(const plan & p, const work & w, const group & g, int64_t c) {
    const int64_t first = c / ROCMFPX_PANEL * ROCMFPX_PANEL;
    return {w.panels + (g.first + first) * p.n_blocks, (int) std::min<int64_t>(ROCMFPX_PANEL, g.count - first)};
}

void pack_columns(const plan & p, work & w, const ggml_compute_params * params, int64_t n_groups) {
    for (int64_t i = 0; i < n_groups; ++i) {
        const group & g = w.groups[i];
        for (int64_t c = 0; c < g.count; ++c) {
            if ((g.first + c) % params->nth == params->ith) {
                const panel to = panel_at(p, w, g, c);
                p.quantize(w.columns[g.first + c].src, w.q8, p.k);
                rocmfpx_pack_column(p.format, w.q8, p.n_blocks, to.act + c % ROCMFPX_PANEL, to.width);
            }
        }
    }
}

void multiply(const plan & p, const work & w, rocmfpx_tile tile, const group & g, int64_t band_first,
              int64_t band_end) {
    alignas(64) float out[ROCMFPX_PANEL * ROCMFPX_BAND];
    for (int64_t band = band_first; band < band_end; ++band) {
        const uint8_t * weights = g.weights + band * ROCMFPX_BAND * p.row_bytes;
        for (int64_t c = 0; c < g.count; c += ROCMFPX_PANEL) {
            const panel from = panel_at(p, w, g, c);
            tile(p.n_blocks, weights, from.act, from.width, from.width, out);
            for (int i = 0; i < from.width; ++i) {
                std::memcpy(w.columns[g.first + c + i].dst + band * ROCMFPX_BAND, out + i * ROCMFPX_BAND,
                            ROCMFPX_BAND * sizeof(float));
            }
        }
    }
}

} // namespace

bool rocmfpx_matmul_supports(const ggml_tensor * op) {
    const ggml_tensor * weights = op->src[0];
    const ggml_tensor * act     = op->src[1];
    if (op->op == GGML_OP_MUL_MAT) {
        return act->type == GGML_TYPE_F32 && act->nb[0] == sizeof(float) && act->ne[2] % weights->ne[2] == 0 &&
               act->ne[3] % weights->ne[3] == 0;
    }
    return op->op == GGML_OP_MUL_MAT_ID && act->type == GGML_TYPE_F32 && act->nb[0] == sizeof(float) &&
           weights->ne[3] == 1 && act->ne[3] == 1;
}

size_t rocmfpx_matmul_work_size(const ggml_tensor * op, int n_threads) {
    return make_plan(op, n_threads).size;
}

void rocmfpx_matmul(const ggml_compute_params * params, ggml_tensor * op) {
    const plan p = make_plan(op, params->nth);
    GGML_ASSERT(p.size <= params->wsize);
    GGML_ASSERT(op->nb[0] == sizeof(float));
    work w = place(p, params);

    const bool by_expert = op->op == GGML_OP_MUL_MAT_ID;
    if (!by_expert) {
        list_mul_mat(p, w, params, op);
    } else if (params->ith == 0) {
        list_mul_mat_id(w, op);
    }
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
    const int64_t n_groups = w.counts[by_expert ? op->src[0]->ne[2] : 0];
    pack_columns(p, w, params, n_groups);
    ggml_barrier(params->threadpool);

    const int64_t n_bands   = op->src[0]->ne[1] / ROCMFPX_BAND;
    const int64_t wanted    = params->nth == 1 ? 1 : (4 * params->nth + n_groups - 1) / n_groups; // pieces of a group
    const int64_t run       = (n_bands + wanted - 1) / wanted;
    const int64_t runs      = (n_bands + run - 1) / run;
    const rocmfpx_tile tile = rocmfpx_kernels_best()->tile[p.format];
    for (int64_t i = params->ith; i < n_groups * runs; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t first = i % runs * run;
        multiply(p, w, tile, w.groups[i / runs], first, std::min(first + run, n_bands));
    }
}
