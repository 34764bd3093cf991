// Owns: tensors to products of the matrix-vector kernels, with every check of upstream's ggml_cuda_mul_mat_vec_q.

#include "rocmfpx-mmv.cuh"

#include "quantize.cuh"
#include "rocmfpx-mmv-launch.cuh"

bool ggml_cuda_rocmfpx_mmv_supported(ggml_type type, int cc) {
    GGML_UNUSED(cc);
    switch (type) {
#define ROCMFPX_MMV_CASE(id, suffix, stem, name, bytes) case GGML_TYPE_##suffix:
        ROCMFPX_TYPES(ROCMFPX_MMV_CASE)
        return true;
        default:
            return false;
    }
}

static const char * rocmfpx_mmv_matrix(const ggml_tensor * t) {
    return t == nullptr ? nullptr : (const char *) t->data;
}

static const float * rocmfpx_mmv_bias(const ggml_tensor * bias, const ggml_tensor * src0, const ggml_tensor * ids,
                                      const ggml_tensor * dst) {
    if (bias == nullptr) {
        return nullptr;
    }
    GGML_ASSERT(bias->type == GGML_TYPE_F32);
    GGML_ASSERT(bias->ne[0] == dst->ne[0]);
    GGML_ASSERT(!ids || bias->ne[1] == src0->ne[2]);
    return (const float *) bias->data;
}

static void rocmfpx_mmv_shared_expert(rocmfpx_mmv_product & p, const ggml_cuda_mm_fusion_args_host & fusion,
                                      const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                                      const ggml_tensor * dst) {
    const ggml_tensor * up   = fusion.shared_up;
    const ggml_tensor * gate = fusion.shared_gate;
    const ggml_tensor * out  = fusion.shared_dst;
    GGML_ASSERT(ids && fusion.gate && gate && out);
    GGML_ASSERT(!fusion.x_bias && !fusion.gate_bias);
    GGML_ASSERT(src1->ne[1] == 1 && src0->ne[3] == 1 && src1->ne[3] == 1);
    GGML_ASSERT(up->type == src0->type && gate->type == src0->type && ggml_are_same_shape(up, gate));
    GGML_ASSERT(ggml_is_contiguous(up) && ggml_is_contiguous(gate) && ggml_is_matrix(up));
    GGML_ASSERT(up->ne[0] == src0->ne[0] && up->ne[1] == src0->ne[1] && up->nb[1] == src0->nb[1]);
    GGML_ASSERT(out->type == GGML_TYPE_F32 && ggml_is_contiguous(out));
    GGML_ASSERT(out->ne[0] == dst->ne[0] && out->ne[1] == dst->ne[2]);
    p.args.shared_up         = rocmfpx_mmv_matrix(up);
    p.args.shared_gate       = rocmfpx_mmv_matrix(gate);
    p.args.shared_dst        = (float *) out->data;
    p.args.shared_dst_column = out->nb[1] / sizeof(float);
    p.channels += 1;
}

static void rocmfpx_mmv_fuse(rocmfpx_mmv_product & p, const ggml_cuda_mm_fusion_args_host & fusion,
                             const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                             const ggml_tensor * dst) {
    GGML_ASSERT(ids || dst->ne[1] == 1);
    GGML_ASSERT(fusion.x_scale == nullptr && fusion.gate_scale == nullptr);
    GGML_ASSERT(!fusion.gate || (fusion.gate->type == src0->type && ggml_are_same_stride(fusion.gate, src0)));
    p.args.gate      = rocmfpx_mmv_matrix(fusion.gate);
    p.args.x_bias    = rocmfpx_mmv_bias(fusion.x_bias, src0, ids, dst);
    p.args.gate_bias = rocmfpx_mmv_bias(fusion.gate_bias, src0, ids, dst);
    p.args.glu_op    = fusion.glu_op;
    p.args.glu_limit = fusion.glu_limit;
    if (fusion.shared_up != nullptr) {
        rocmfpx_mmv_shared_expert(p, fusion, src0, src1, ids, dst);
    }
}

// Strides. With ids, dim 1 of src1 and dst counts experts used and dim 2 tokens.
static rocmfpx_mmv_product rocmfpx_mmv_describe(const ggml_tensor * src0, const ggml_tensor * src1,
                                                const ggml_tensor * ids, const ggml_tensor * dst, int64_t y_row) {
    rocmfpx_mmv_product p{};
    rocmfpx_mmv_args & a = p.args;
    const int64_t d1     = dst->nb[1] / sizeof(float);
    const int64_t d2     = dst->nb[2] / sizeof(float);
    const int64_t y_next = src1->ne[1] * y_row;
    a.x                  = rocmfpx_mmv_matrix(src0);
    a.dst                = (float *) dst->data;
    a.ids                = ids ? (const int32_t *) ids->data : nullptr;
    a.rows               = (int) src0->ne[1];
    a.blocks             = (int) (src0->ne[0] / QK_ROCMFPX);
    a.row_bytes          = src0->nb[1];
    a.channel_bytes      = src0->nb[2];
    a.sample_bytes       = src0->nb[3];
    a.y_column           = ids ? y_next : y_row;
    a.y_channel          = ids ? y_row : y_next;
    a.y_sample           = src1->ne[2] * y_next;
    a.dst_column         = ids ? d2 : d1;
    a.dst_channel        = ids ? d1 : d2;
    a.dst_sample         = dst->nb[3] / sizeof(float);
    a.channels_y         = init_fastdiv_values(src1->ne[1]);
    a.channel_ratio      = init_fastdiv_values(ids ? 1 : dst->ne[2] / src0->ne[2]);
    a.sample_ratio       = init_fastdiv_values(dst->ne[3] / src0->ne[3]);
    a.ids_stride         = ids ? ids->nb[1] / sizeof(int32_t) : 0;
    a.tokens             = ids != nullptr;
    p.columns            = ids ? 1 : (int) dst->ne[1];
    p.channels           = (int) (ids ? dst->ne[1] : dst->ne[2]);
    p.samples            = (int) (ids ? dst->ne[2] : dst->ne[3]);
    return p;
}

static bool rocmfpx_mmv_can_bulk(const rocmfpx_mmv_args & a) {
    const int cc = ggml_cuda_info().devices[ggml_cuda_get_device()].cc;
    if (!GGML_CUDA_CC_IS_NVIDIA(cc) || ggml_cuda_highest_compiled_arch(cc) < GGML_CUDA_CC_HOPPER) {
        return false;
    }
    const uintptr_t bits = (uintptr_t) a.x | (uintptr_t) a.gate | (uintptr_t) a.shared_up | (uintptr_t) a.shared_gate |
                           (uintptr_t) a.row_bytes | (uintptr_t) a.channel_bytes | (uintptr_t) a.sample_bytes;
    return bits % 16 == 0;
}

static bool rocmfpx_mmv_constant(const ggml_tensor * t) {
    return t == nullptr || ggml_backend_buffer_get_usage(t->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

static void rocmfpx_mmv_run(const rocmfpx_mmv_product & p, ggml_type type, cudaStream_t stream) {
    switch (type) {
#define ROCMFPX_MMV_RUN(id, suffix, stem, name, bytes)                                                                 \
    case GGML_TYPE_##suffix:                                                                                           \
        rocmfpx_mmv_##stem(p, stream);                                                                                 \
        break;
        ROCMFPX_TYPES(ROCMFPX_MMV_RUN)
        default:
            GGML_ABORT("%s is no ROCmFPX type", ggml_type_name(type));
    }
}

void ggml_cuda_rocmfpx_mul_mat_vec(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1,
                                   const ggml_tensor * ids, ggml_tensor * dst,
                                   const ggml_cuda_mm_fusion_args_host * fusion) {
    GGML_ASSERT(src1->type == GGML_TYPE_F32 && dst->type == GGML_TYPE_F32);
    GGML_ASSERT(!ids || (ids->type == GGML_TYPE_I32 && ids->nb[0] == sizeof(int32_t)));
    GGML_ASSERT(src0->nb[0] == ggml_type_size(src0->type));
    GGML_ASSERT(src1->nb[0] == sizeof(float) && dst->nb[0] == sizeof(float));
    GGML_ASSERT(src0->ne[0] % QK_ROCMFPX == 0);
    GGML_ASSERT((ids ? src1->ne[2] : dst->ne[1]) <= ROCMFPX_MMV_MAX_COLUMNS);

    const int64_t padded      = GGML_PAD(src1->ne[0], MATRIX_ROW_PADDING);
    const int64_t rows        = src1->ne[1] * src1->ne[2] * src1->ne[3];
    const cudaStream_t stream = ctx.stream();
    ggml_cuda_pool_alloc<char> y(ctx.pool(), rows * padded / QK8_1 * sizeof(block_q8_1));

    rocmfpx_mmv_product p = rocmfpx_mmv_describe(src0, src1, ids, dst, padded / QK8_1);
    if (fusion != nullptr) {
        rocmfpx_mmv_fuse(p, *fusion, src0, src1, ids, dst);
    }
    p.args.y = (const block_q8_1 *) y.get();
    p.args.early =
        ids == nullptr && rocmfpx_mmv_constant(src0) && rocmfpx_mmv_constant(fusion ? fusion->gate : nullptr);
    p.bulk = rocmfpx_mmv_can_bulk(p.args);

    quantize_row_q8_1_cuda((const float *) src1->data, nullptr, y.get(), src0->type, src1->ne[0],
                           src1->nb[1] / sizeof(float), src1->nb[2] / sizeof(float), src1->nb[3] / sizeof(float),
                           padded, src1->ne[1], src1->ne[2], src1->ne[3], stream);
    rocmfpx_mmv_run(p, src0->type, stream);
}
