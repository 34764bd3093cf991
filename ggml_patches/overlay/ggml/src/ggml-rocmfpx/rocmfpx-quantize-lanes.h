// Owns: the choice of a scale with one candidate scale in each vector lane. No include guard: a source file
// defines the vector operations of one instruction set, then includes this once.
//
// A lane adds the errors of its scale in index order, as the reference does, so the bytes are the same. What is
// never computed is proven not to matter:
//   a group of candidates ends when every partial sum is above the best sum so far, since sums only grow;
//   smaller scales end when the weights beyond the largest level alone lose more than the best;
//   larger scales end when the weights that have become zero, which stay zero, lose more than the best.
//
// Expected definitions: LANES, LANES_INLINE (static inline with the target attribute), vfloat and
//   v_load v_store v_set1 v_zero v_add v_sub v_mul v_min v_max v_abs   as their names say
//   v_finite(x)         x, and 0 where x is not finite
//   v_keep_below(a, b, limit)   a where b < limit, else 0
//   v_round_away(a)     nearest integer of 0 <= a < 2^22, halves away from zero
//   v_product_fp2, v_product_fp3, v_product_fp4 (q, scale)     level nearest to q, times scale
//   v_all_above(a, limit)                                      true if every lane is
//   v_sum(a), v_least(a), v_greatest(a)                        over lanes, in any order
//   v_lanes_equal(a, value)                                    bit i set where lane i is equal
//   v_store_int(a, out)                                        truncated to int32
//   v_weight(x, qw, energy)                                    importance weight, as rocmfpx_weights

#define SURE      0.9999f // below the rounding of any order of 32 additions
#define SUM_LIMIT 1e38f   // bounds above it could come from an overflow of one order only

// A group prepared for the search: magnitudes for the formats with a sign bit, plain weights for FP2.
typedef struct {
    float x[QK_ROCMFPX];
    float w[QK_ROCMFPX];
    int n;
    bool weighted;
    float max;
} lanes_group;

typedef struct {
    float error;
    int byte;
} lanes_best;

// Level nearest to q, times scale. q is not negative except for FP2.
LANES_INLINE vfloat lanes_product(enum rocmfpx_rule rule, vfloat q, vfloat scale) {
    switch (rule) {
        case ROCMFPX_RULE_FP2:
            return v_product_fp2(q, scale);
        case ROCMFPX_RULE_FP3:
            return v_product_fp3(q, scale);
        case ROCMFPX_RULE_FP4:
            return v_product_fp4(q, scale);
        case ROCMFPX_RULE_FP6:
            return v_mul(v_round_away(v_min(q, v_set1(31.0f))), scale);
        default:
            return v_mul(v_round_away(v_min(q, v_set1(127.0f))), scale);
    }
}

// Errors of the scale bytes first, first + 1, ...; false if all are above `limit`.
LANES_INLINE bool lanes_errors(enum rocmfpx_rule rule, const lanes_group * g, bool weighted, int first, float limit,
                               vfloat * errors) {
    const vfloat scale      = v_load(rocmfpx_scale + first);
    const vfloat reciprocal = v_load(rocmfpx_reciprocal + first);
    vfloat sum              = v_zero();
    for (int i = 0; i < g->n; i += 4) {
        for (int j = i; j < i + 4; ++j) {
            const vfloat x  = v_set1(g->x[j]);
            const vfloat d  = v_sub(x, lanes_product(rule, v_mul(x, reciprocal), scale));
            const vfloat wd = weighted ? v_mul(v_set1(g->w[j]), d) : d;
            sum             = v_add(sum, v_mul(wd, d));
        }
        if (v_all_above(sum, limit)) {
            return false;
        }
    }
    *errors = sum;
    return true;
}

// Offer LANES bytes from `first` on; those beyond the last valid one do not count.
LANES_INLINE void lanes_offer(const rocmfpx_codec * c, enum rocmfpx_rule rule, const lanes_group * g, bool weighted,
                              int first, lanes_best * best) {
    vfloat errors;
    if (!lanes_errors(rule, g, weighted, first, best->error, &errors)) {
        return;
    }
    const int count = ROCMFPX_SCALE_MAX + 1 - first;
    float least;
    unsigned which;
    if (count >= LANES) {
        least = v_least(errors);
        which = v_lanes_equal(errors, least);
    } else {
        float each[LANES];
        v_store(errors, each);
        least = each[0];
        which = 0;
        for (int i = 1; i < count; ++i) {
            which = each[i] < least ? (unsigned) i : which;
            least = each[i] < least ? each[i] : least;
        }
        which = 1u << which;
    }
    const int byte      = first + __builtin_ctz(which);
    const bool eligible = !c->refuses_overflow || least < FLT_MAX;
    if (eligible && (least < best->error || (least == best->error && byte < best->byte))) {
        best->error = least;
        best->byte  = byte;
    }
}

// Sum of the errors that every scale below byte e has at least: of the weights beyond the largest level.
LANES_INLINE float lanes_clipped(const lanes_group * g, bool weighted, float top, int e) {
    const vfloat limit = v_set1(top * rocmfpx_scale[e]);
    vfloat sum         = v_zero();
    for (int i = 0; i < g->n; i += LANES) {
        const vfloat d    = v_sub(v_abs(v_load(g->x + i)), limit);
        const vfloat over = v_sub(d, v_keep_below(d, d, 0.0f));
        const vfloat wd   = weighted ? v_mul(v_load(g->w + i), over) : over;
        sum               = v_add(sum, v_mul(wd, over));
    }
    return v_sum(sum);
}

// Sum of the errors that every scale from byte e on has at least: of the weights that are zero under e.
LANES_INLINE float lanes_zeroed(const lanes_group * g, bool weighted, int e) {
    const vfloat reciprocal = v_set1(rocmfpx_reciprocal[e]);
    vfloat sum              = v_zero();
    for (int i = 0; i < g->n; i += LANES) {
        const vfloat x     = v_load(g->x + i);
        const vfloat small = v_keep_below(x, v_abs(v_mul(x, reciprocal)), 0.5f);
        const vfloat wx    = weighted ? v_mul(v_load(g->w + i), small) : small;
        sum                = v_add(sum, v_mul(wx, small));
    }
    return v_sum(sum);
}

static inline bool lanes_proven(float bound, float best) {
    return bound < SUM_LIMIT && bound * SURE > best;
}

// The byte next below max/top, read off the bits of the float: a scale byte is exponent and mantissa too.
static inline int lanes_first_guess(float max, int top) {
    const float target = max / (float) top;
    uint32_t bits;
    memcpy(&bits, &target, sizeof(bits));
    const int byte = (int) (bits >> 20) - (119 << 3);
    return byte < 1 ? 1 : byte > ROCMFPX_SCALE_MAX ? ROCMFPX_SCALE_MAX : byte;
}

LANES_INLINE int lanes_search(const rocmfpx_codec * c, enum rocmfpx_rule rule, const lanes_group * g, bool weighted) {
    lanes_best best = {INFINITY, c->refuses_overflow ? 0 : 1};
    const float top = (float) c->top;
    const int guess = lanes_first_guess(g->max, c->top) - LANES / 4;
    const int first = guess < 1 ? 1 : guess;

    lanes_offer(c, rule, g, weighted, first, &best);
    for (int e = first + LANES; e <= ROCMFPX_SCALE_MAX; e += LANES) {
        const bool all_zero = g->max * rocmfpx_reciprocal[e - 1] < 0.5f;
        if (all_zero || lanes_proven(lanes_zeroed(g, weighted, e - 1), best.error)) {
            break;
        }
        lanes_offer(c, rule, g, weighted, e, &best);
    }
    for (int e = first; e > 1;) {
        if (lanes_proven(lanes_clipped(g, weighted, top, e), best.error)) {
            break;
        }
        e = e > LANES ? e - LANES : 1;
        lanes_offer(c, rule, g, weighted, e, &best);
    }
    return best.byte;
}

LANES_INLINE int lanes_nearest(float target) {
    if (!(target > 0.0f)) {
        return 0;
    }
    const vfloat t = v_set1(target);
    float least    = INFINITY;
    int byte       = 1;
    for (int e = 1; e <= ROCMFPX_SCALE_MAX; e += LANES) {
        const int from        = e + LANES - 1 <= ROCMFPX_SCALE_MAX ? e : ROCMFPX_SCALE_MAX + 1 - LANES;
        const vfloat distance = v_abs(v_sub(v_load(rocmfpx_scale + from), t));
        const float nearest   = v_least(distance);
        if (nearest < least) {
            least = nearest;
            byte  = from + __builtin_ctz(v_lanes_equal(distance, nearest));
        }
    }
    return byte;
}

LANES_INLINE void lanes_prepare(const rocmfpx_codec * c, const float * x, const float * w, lanes_group * g) {
    g->n        = c->group;
    g->weighted = w != NULL;
    vfloat max  = v_zero();
    for (int i = 0; i < g->n; i += LANES) {
        const vfloat finite    = v_finite(v_load(x + i));
        const vfloat magnitude = v_abs(finite);
        max                    = v_max(max, magnitude);
        v_store(c->rule == ROCMFPX_RULE_FP2 ? finite : magnitude, g->x + i);
        if (w) {
            v_store(v_load(w + i), g->w + i);
        }
    }
    g->max = v_greatest(max);
}

// The search, compiled once for each rule with and without weights.
#define LANES_SEARCH(RULE)                                                                                             \
    case RULE:                                                                                                         \
        return g->weighted ? lanes_search(c, RULE, g, true) : lanes_search(c, RULE, g, false);

LANES_FUNCTION int lanes_search_any(const rocmfpx_codec * c, const lanes_group * g) {
    switch (c->rule) {
        LANES_SEARCH(ROCMFPX_RULE_FP2)
        LANES_SEARCH(ROCMFPX_RULE_FP3)
        LANES_SEARCH(ROCMFPX_RULE_FP4)
        LANES_SEARCH(ROCMFPX_RULE_FP6)
        LANES_SEARCH(ROCMFPX_RULE_FP8)
    }
    return 0;
}

// FP2 chooses by thresholds here: the same as by distances while |q| < 2^22, whatever the scale.
#define FP2_Q_LIMIT      4194304.0f
#define FP2_WEIGHT_LIMIT (FP2_Q_LIMIT / 1024.0f)

LANES_FUNCTION int lanes_fit(const rocmfpx_codec * c, const float * x, const float * w) {
    lanes_group g;
    lanes_prepare(c, x, w, &g);
    if (c->nearest_scale && !w) {
        return lanes_nearest(g.max / (float) c->top);
    }
    if (g.max == 0.0f) {
        return 0;
    }
    if (c->rule == ROCMFPX_RULE_FP2 && !(g.max < FP2_WEIGHT_LIMIT)) {
        return rocmfpx_fit_ref(c, x, w);
    }
    return lanes_search_any(c, &g);
}

static inline uint8_t lanes_code(enum rocmfpx_rule rule, int level, bool negative) {
    switch (rule) {
        case ROCMFPX_RULE_FP2:
            return (uint8_t) (level + 1);
        case ROCMFPX_RULE_FP3:
            return (uint8_t) (level - (level >> 2) + (negative && level ? 4 : 0));
        case ROCMFPX_RULE_FP4:
            return (uint8_t) ((level > 4 ? (level >> 1) + 2 : level) + (negative && level ? 8 : 0));
        case ROCMFPX_RULE_FP6:
            return (uint8_t) (level + (negative && level ? 32 : 0));
        default:
            return (uint8_t) (negative ? -level : level);
    }
}

// False if some q is too large for the thresholds of FP2.
LANES_INLINE bool lanes_codes_of(enum rocmfpx_rule rule, int n, const float * x, int scale_byte, uint8_t * codes) {
    const vfloat reciprocal = v_set1(rocmfpx_reciprocal[scale_byte]);
    vfloat largest          = v_zero();
    int32_t levels[QK_ROCMFPX];
    for (int i = 0; i < n; i += LANES) {
        const vfloat q = v_mul(v_finite(v_load(x + i)), reciprocal);
        largest        = v_max(largest, v_abs(q));
        v_store_int(lanes_product(rule, rule == ROCMFPX_RULE_FP2 ? q : v_abs(q), v_set1(1.0f)), levels + i);
    }
    for (int i = 0; i < n; ++i) {
        codes[i] = lanes_code(rule, levels[i], x[i] < 0.0f);
    }
    return rule != ROCMFPX_RULE_FP2 || v_greatest(largest) < FP2_Q_LIMIT;
}

LANES_FUNCTION void lanes_codes(const rocmfpx_codec * c, const float * x, int scale_byte, uint8_t * codes) {
    switch (c->rule) {
        case ROCMFPX_RULE_FP2:
            if (!lanes_codes_of(ROCMFPX_RULE_FP2, c->group, x, scale_byte, codes)) {
                rocmfpx_codes_ref(c, x, scale_byte, codes);
            }
            return;
        case ROCMFPX_RULE_FP3:
            lanes_codes_of(ROCMFPX_RULE_FP3, c->group, x, scale_byte, codes);
            return;
        case ROCMFPX_RULE_FP4:
            lanes_codes_of(ROCMFPX_RULE_FP4, c->group, x, scale_byte, codes);
            return;
        case ROCMFPX_RULE_FP6:
            lanes_codes_of(ROCMFPX_RULE_FP6, c->group, x, scale_byte, codes);
            return;
        case ROCMFPX_RULE_FP8:
            lanes_codes_of(ROCMFPX_RULE_FP8, c->group, x, scale_byte, codes);
            return;
    }
}

// The sum stays in index order; without a weight above 1e16 it cannot overflow in a row of a million.
LANES_FUNCTION float lanes_row_energy(const float * x, int64_t k) {
    vfloat max = v_zero();
    for (int64_t i = 0; i < k; i += LANES) {
        max = v_max(max, v_abs(v_finite(v_load(x + i))));
    }
    if (v_greatest(max) > 1e16f || k > 1000000) {
        return rocmfpx_row_energy(x, k);
    }
    float sum = 0.0f;
    for (int64_t i = 0; i < k; i += LANES) {
        float finite[LANES];
        v_store(v_finite(v_load(x + i)), finite);
        for (int j = 0; j < LANES; ++j) {
            sum += finite[j] * finite[j];
        }
    }
    return sum / (float) k;
}

LANES_FUNCTION void lanes_weights(const float * x, const float * qw, float energy, int n, float * w) {
    for (int i = 0; i < n; i += LANES) {
        v_store(v_weight(v_load(x + i), v_load(qw + i), v_set1(energy)), w + i);
    }
}

static const rocmfpx_steps lanes_steps = {
    .row_energy = lanes_row_energy,
    .weights    = lanes_weights,
    .fit        = lanes_fit,
    .codes      = lanes_codes,
};
