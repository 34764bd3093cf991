// Owns: ROCmFPX blocks to numbers: conversion, get_rows, copies to floats, copies of whole blocks.
// A thread decodes half a block. Every product level * scale is exact, so all results equal the CPU's bit for bit.

#include "convert.cuh"
#include "rocmfpx-decode.cuh"
#include "rocmfpx-rows.cuh"
#include "rocmfpx.cuh"

#define THREADS    256
#define GRID_LIMIT 65535 // of the second and third dimension

template <ggml_type type, typename T>
static __device__ __forceinline__ void decode_half(const uint8_t * block, int h, T * y) {
    uint32_t levels[4];
    rocmfpx_half_levels<type>(block, h, levels);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const int first   = rocmfpx_first_weight<type>(h, w);
        const float scale = rocmfpx_block_scale<type>(block, first);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            y[first + i] = ggml_cuda_cast<T>((float) (int8_t) (levels[w] >> 8 * i) * scale);
        }
    }
}

// x: rows of blocks, strides in bytes; y: contiguous.
template <ggml_type type, typename T>
static __global__ void convert_rows(const uint8_t * __restrict__ x, T * __restrict__ y, int64_t ne0, int64_t ne1,
                                    int64_t ne2, int64_t ne3, int64_t nb1, int64_t nb2, int64_t nb3) {
    ggml_cuda_pdl_sync();
    const int64_t half = (int64_t) blockIdx.x * blockDim.x + threadIdx.x;
    if (half >= ne0 / 16) {
        return;
    }
    const int64_t block = half / 2;
    for (int64_t plane = blockIdx.z; plane < ne2 * ne3; plane += gridDim.z) {
        for (int64_t row = blockIdx.y; row < ne1; row += gridDim.y) {
            const uint8_t * from = x + row * nb1 + plane % ne2 * nb2 + plane / ne2 * nb3;
            T * to               = y + (plane * ne1 + row) * ne0;
            decode_half<type>(from + block * rocmfpx_layout<type>::block_bytes, (int) (half % 2),
                              to + block * QK_ROCMFPX);
        }
    }
}

template <ggml_type type, typename T>
static void convert(const void * x, T * y, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, int64_t s1, int64_t s2,
                    int64_t s3, cudaStream_t stream) {
    constexpr int64_t bytes = rocmfpx_layout<type>::block_bytes;
    GGML_ASSERT(ne0 % QK_ROCMFPX == 0);
    if (ne0 * ne1 * ne2 * ne3 == 0) {
        return;
    }
    const dim3 grid((unsigned) ((ne0 / 16 + THREADS - 1) / THREADS), (unsigned) std::min<int64_t>(ne1, GRID_LIMIT),
                    (unsigned) std::min<int64_t>(ne2 * ne3, GRID_LIMIT));
    ggml_cuda_kernel_launch(convert_rows<type, T>,
                            ggml_cuda_kernel_launch_params(grid, dim3(THREADS), (size_t) 0, stream),
                            (const uint8_t *) x, y, ne0, ne1, ne2, ne3, s1 * bytes, s2 * bytes, s3 * bytes);
}

template <ggml_type type, typename T>
static void convert_contiguous(const void * x, T * y, int64_t k, cudaStream_t stream) {
    convert<type>(x, y, k, 1, 1, 1, 0, 0, 0, stream);
}

template <typename T> ggml_cuda_rocmfpx_to_t<T> ggml_cuda_rocmfpx_to(ggml_type type) {
    switch (type) {
#define CASE_TO(id, suffix, stem, name, bytes)                                                                         \
    case GGML_TYPE_##suffix:                                                                                           \
        return convert_contiguous<GGML_TYPE_##suffix, T>;
        ROCMFPX_TYPES(CASE_TO)
        default:
            return nullptr;
    }
}

template <typename T> ggml_cuda_rocmfpx_to_nc_t<T> ggml_cuda_rocmfpx_to_nc(ggml_type type) {
    switch (type) {
#define CASE_TO_NC(id, suffix, stem, name, bytes)                                                                      \
    case GGML_TYPE_##suffix:                                                                                           \
        return convert<GGML_TYPE_##suffix, T>;
        ROCMFPX_TYPES(CASE_TO_NC)
        default:
            return nullptr;
    }
}

#define INSTANTIATE(T)                                                                                                 \
    template ggml_cuda_rocmfpx_to_t<T> ggml_cuda_rocmfpx_to<T>(ggml_type type);                                        \
    template ggml_cuda_rocmfpx_to_nc_t<T> ggml_cuda_rocmfpx_to_nc<T>(ggml_type type);
INSTANTIATE(float)
INSTANTIATE(half)
INSTANTIATE(nv_bfloat16)

struct row_source {
    const uint8_t * data;
    int64_t nb1, nb2, nb3;
};

struct row_index {
    const int32_t * data;
    int64_t ne1, ne2, s0, s1, s2;
};

template <typename T> struct row_target {
    T * data;
    int64_t s1, s2, s3;
};

template <ggml_type type, typename T>
static __global__ void get_rows(const row_source x, const row_index ids, const row_target<T> y, int64_t halves) {
    ggml_cuda_pdl_sync();
    const int64_t i0 = blockIdx.x;
    for (int64_t z = blockIdx.z; z < ids.ne1 * ids.ne2; z += gridDim.z) {
        const int64_t i1     = z / ids.ne2;
        const int64_t i2     = z % ids.ne2;
        const int32_t id     = ids.data[i0 * ids.s0 + i1 * ids.s1 + i2 * ids.s2];
        const uint8_t * from = x.data + id * x.nb1 + i1 * x.nb2 + i2 * x.nb3;
        T * to               = y.data + i0 * y.s1 + i1 * y.s2 + i2 * y.s3;
        for (int64_t half = (int64_t) blockIdx.y * blockDim.x + threadIdx.x; half < halves;
             half += (int64_t) gridDim.y * blockDim.x) {
            decode_half<type>(from + half / 2 * rocmfpx_layout<type>::block_bytes, (int) (half % 2),
                              to + half / 2 * QK_ROCMFPX);
        }
    }
}

template <typename T>
static void get_rows_switch(ggml_type type, const row_source & x, const row_index & ids, const row_target<T> & y,
                            int64_t ne00, int64_t ne10, cudaStream_t stream) {
    const int64_t halves = ne00 / 16;
    const int threads    = halves < THREADS ? (int) GGML_PAD(halves, WARP_SIZE) : THREADS;
    const dim3 grid((unsigned) ne10, (unsigned) std::min<int64_t>((halves + threads - 1) / threads, GRID_LIMIT),
                    (unsigned) std::min<int64_t>(ids.ne1 * ids.ne2, GRID_LIMIT));
    const ggml_cuda_kernel_launch_params launch(grid, dim3(threads), (size_t) 0, stream);
    switch (type) {
#define CASE_GET_ROWS(id, suffix, stem, name, bytes)                                                                   \
    case GGML_TYPE_##suffix:                                                                                           \
        ggml_cuda_kernel_launch(get_rows<GGML_TYPE_##suffix, T>, launch, x, ids, y, halves);                           \
        break;
        ROCMFPX_TYPES(CASE_GET_ROWS)
        default:
            GGML_ABORT("%s: unsupported type %s", __func__, ggml_type_name(type));
    }
}

void ggml_cuda_rocmfpx_get_rows(const void * src0_d, ggml_type src0_type, const int32_t * src1_d, void * dst_d,
                                ggml_type dst_type, int64_t ne00, size_t nb01, size_t nb02, size_t nb03, int64_t ne10,
                                int64_t ne11, int64_t ne12, size_t nb10, size_t nb11, size_t nb12, size_t nb1,
                                size_t nb2, size_t nb3, cudaStream_t stream) {
    if (ne00 * ne10 * ne11 * ne12 == 0) {
        return;
    }
    GGML_ASSERT(ne00 % QK_ROCMFPX == 0);
    const row_source x  = {(const uint8_t *) src0_d, (int64_t) nb01, (int64_t) nb02, (int64_t) nb03};
    const row_index ids = {src1_d,
                           ne11,
                           ne12,
                           (int64_t) (nb10 / sizeof(int32_t)),
                           (int64_t) (nb11 / sizeof(int32_t)),
                           (int64_t) (nb12 / sizeof(int32_t))};
    const auto run      = [&](auto * y) {
        using T                  = std::remove_pointer_t<decltype(y)>;
        const row_target<T> rows = {y, (int64_t) (nb1 / sizeof(T)), (int64_t) (nb2 / sizeof(T)),
                                    (int64_t) (nb3 / sizeof(T))};
        get_rows_switch<T>(src0_type, x, ids, rows, ne00, ne10, stream);
    };
    switch (dst_type) {
        case GGML_TYPE_F32:
            return run((float *) dst_d);
        case GGML_TYPE_F16:
            return run((half *) dst_d);
        case GGML_TYPE_BF16:
            return run((nv_bfloat16 *) dst_d);
        default:
            GGML_ABORT("%s: unsupported type %s", __func__, ggml_type_name(dst_type));
    }
}

template <ggml_type type, typename T>
static __global__ void copy_decoded(const uint8_t * __restrict__ x, char * __restrict__ y, const rocmfpx_rows from,
                                    const rocmfpx_rows to, int64_t halves) {
    ggml_cuda_pdl_sync();
    const int64_t half = (int64_t) blockIdx.x * blockDim.x + threadIdx.x;
    if (half >= halves) {
        return;
    }
    const rocmfpx_place at    = rocmfpx_place_of(from, half / 2);
    const rocmfpx_place there = rocmfpx_place_of(to, half / 2);
    decode_half<type>(x + rocmfpx_row_offset(from, at) + at.block * rocmfpx_layout<type>::block_bytes, (int) (half % 2),
                      (T *) (y + rocmfpx_row_offset(to, there)) + there.block * QK_ROCMFPX);
}

template <typename T> static void copy_decoded_switch(const ggml_tensor * src, ggml_tensor * dst, cudaStream_t stream) {
    const int64_t halves = ggml_nelements(src) / 16;
    const ggml_cuda_kernel_launch_params launch(dim3((unsigned) ((halves + THREADS - 1) / THREADS)), dim3(THREADS),
                                                (size_t) 0, stream);
    switch (src->type) {
#define CASE_COPY_DECODED(id, suffix, stem, name, bytes)                                                               \
    case GGML_TYPE_##suffix:                                                                                           \
        ggml_cuda_kernel_launch(copy_decoded<GGML_TYPE_##suffix, T>, launch, (const uint8_t *) src->data,              \
                                (char *) dst->data, rocmfpx_rows_of(src), rocmfpx_target_rows(dst), halves);           \
        break;
        ROCMFPX_TYPES(CASE_COPY_DECODED)
        default:
            GGML_ABORT("%s: unsupported type %s", __func__, ggml_type_name(src->type));
    }
}

void ggml_cuda_rocmfpx_cpy_decode(const ggml_tensor * src, ggml_tensor * dst, cudaStream_t stream) {
    switch (dst->type) {
        case GGML_TYPE_F32:
            return copy_decoded_switch<float>(src, dst, stream);
        case GGML_TYPE_F16:
            return copy_decoded_switch<half>(src, dst, stream);
        case GGML_TYPE_BF16:
            return copy_decoded_switch<nv_bfloat16>(src, dst, stream);
        default:
            GGML_ABORT("%s: unsupported type %s", __func__, ggml_type_name(dst->type));
    }
}

static __global__ void copy_blocks(const uint8_t * __restrict__ x, uint8_t * __restrict__ y, const rocmfpx_rows from,
                                   const rocmfpx_rows to, int block_bytes, int64_t blocks) {
    ggml_cuda_pdl_sync();
    const int64_t block = (int64_t) blockIdx.x * blockDim.x + threadIdx.x;
    if (block >= blocks) {
        return;
    }
    const rocmfpx_place at    = rocmfpx_place_of(from, block);
    const rocmfpx_place there = rocmfpx_place_of(to, block);
    x += rocmfpx_row_offset(from, at) + at.block * block_bytes;
    y += rocmfpx_row_offset(to, there) + there.block * block_bytes;
    for (int i = 0; i < block_bytes; ++i) {
        y[i] = x[i];
    }
}

void ggml_cuda_rocmfpx_cpy_blocks(const ggml_tensor * src, ggml_tensor * dst, cudaStream_t stream) {
    const int64_t blocks = ggml_nelements(src) / QK_ROCMFPX;
    const ggml_cuda_kernel_launch_params launch(dim3((unsigned) ((blocks + THREADS - 1) / THREADS)), dim3(THREADS),
                                                (size_t) 0, stream);
    ggml_cuda_kernel_launch(copy_blocks, launch, (const uint8_t *) src->data, (uint8_t *) dst->data,
                            rocmfpx_rows_of(src), rocmfpx_target_rows(dst), (int) ggml_type_size(src->type), blocks);
}
