// Owns: floats to ROCmFPX blocks on the device: set_rows and copies, equal to the CPU's default encoder bit for bit.

#include "rocmfpx-encode.cuh"
#include "rocmfpx-rows.cuh"
#include "rocmfpx.cuh"

#define THREADS 128 // four blocks of weights

// Where a block goes: its place among the rows of a copy.
struct copy_target {
    uint8_t * data;
    rocmfpx_rows rows;

    __device__ uint8_t * row(const rocmfpx_place &, int64_t block, int64_t & in_row) const {
        const rocmfpx_place there = rocmfpx_place_of(rows, block);
        in_row                    = there.block;
        return data + rocmfpx_row_offset(rows, there);
    }
};

// Or: the row that an index names.
template <typename I> struct indexed_target {
    uint8_t * data;
    rocmfpx_rows rows;
    const I * index;
    int64_t ne1, ne2, s0, s1, s2; // of index

    __device__ uint8_t * row(const rocmfpx_place & at, int64_t, int64_t & in_row) const {
        const int64_t row = (int64_t) index[at.i1 * s0 + at.i2 % ne1 * s1 + at.i3 % ne2 * s2];
        in_row            = at.block;
        return data + row * rows.nb1 + at.i2 * rows.nb2 + at.i3 * rows.nb3;
    }
};

template <ggml_type type, typename T, typename target>
static __global__ void quantize_blocks(const char * __restrict__ x, const rocmfpx_rows from, const target to,
                                       int64_t blocks) {
    ggml_cuda_pdl_sync();
    const int lane      = threadIdx.x % 32;
    const int64_t block = (int64_t) blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (block >= blocks) {
        return; // all 32 threads of the group
    }
    const rocmfpx_place at = rocmfpx_place_of(from, block);
    int64_t in_row;
    uint8_t * row = to.row(at, block, in_row);
    rocmfpx_encode_block<type>((const T *) (x + rocmfpx_row_offset(from, at)) + at.block * QK_ROCMFPX,
                               row + in_row * rocmfpx_layout<type>::block_bytes, lane);
}

template <typename T, typename target>
static void quantize(ggml_type type, const ggml_tensor * src, const target & to, cudaStream_t stream) {
    const int64_t blocks = ggml_nelements(src) / QK_ROCMFPX;
    const int64_t grid   = (blocks + THREADS / 32 - 1) / (THREADS / 32);
    const ggml_cuda_kernel_launch_params launch(dim3((unsigned) grid), dim3(THREADS), (size_t) 0, stream);
    switch (type) {
#define CASE_QUANTIZE(id, suffix, stem, name, bytes)                                                                   \
    case GGML_TYPE_##suffix:                                                                                           \
        ggml_cuda_kernel_launch(quantize_blocks<GGML_TYPE_##suffix, T, target>, launch, (const char *) src->data,      \
                                rocmfpx_rows_of(src), to, blocks);                                                     \
        break;
        ROCMFPX_TYPES(CASE_QUANTIZE)
        default:
            GGML_ABORT("%s: unsupported type %s", __func__, ggml_type_name(type));
    }
}

void ggml_cuda_rocmfpx_cpy_quantize(const ggml_tensor * src, ggml_tensor * dst, cudaStream_t stream) {
    const copy_target to = {(uint8_t *) dst->data, rocmfpx_target_rows(dst)};
    switch (src->type) {
        case GGML_TYPE_F32:
            return quantize<float>(dst->type, src, to, stream);
        case GGML_TYPE_F16:
            return quantize<half>(dst->type, src, to, stream);
        case GGML_TYPE_BF16:
            return quantize<nv_bfloat16>(dst->type, src, to, stream);
        default:
            GGML_ABORT("%s: unsupported type %s", __func__, ggml_type_name(src->type));
    }
}

template <typename I>
static void set_rows(const ggml_tensor * src, const ggml_tensor * index, ggml_tensor * dst, cudaStream_t stream) {
    const indexed_target<I> to = {(uint8_t *) dst->data,
                                  rocmfpx_rows_of(dst),
                                  (const I *) index->data,
                                  index->ne[1],
                                  index->ne[2],
                                  (int64_t) (index->nb[0] / sizeof(I)),
                                  (int64_t) (index->nb[1] / sizeof(I)),
                                  (int64_t) (index->nb[2] / sizeof(I))};
    quantize<float>(dst->type, src, to, stream);
}

void ggml_cuda_rocmfpx_set_rows(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * src   = dst->src[0];
    const ggml_tensor * index = dst->src[1];
    GGML_ASSERT(src->type == GGML_TYPE_F32 && src->nb[0] == sizeof(float) && src->ne[0] % QK_ROCMFPX == 0);
    if (index->type == GGML_TYPE_I64) {
        set_rows<int64_t>(src, index, dst, ctx.stream());
    } else {
        GGML_ASSERT(index->type == GGML_TYPE_I32);
        set_rows<int32_t>(src, index, dst, ctx.stream());
    }
}
