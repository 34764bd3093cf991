#pragma once

// Owns: the bulk way of rocmfpx-mmv-kernel.cuh. Rows start at multiples of 16 bytes.
//
// Shared memory: barriers of all warps, activations of all columns as block_q8_1 (arranged in place unless they go to
// registers), the start of the sums where the levels have an offset, then the rings of the warps.

#include "rocmfpx-mmv-kernel.cuh"

#ifdef ROCMFPX_BULK_AVAILABLE

// The ring of a warp: what it copies next and what it waits for next.
template <typename sizes, int nrows> struct rocmfpx_mmv_ring {
    uint32_t barrier; // of stage 0, the others behind it
    uint32_t data;    // shared address of stage 0
    int stages, stage;
    uint32_t phase;
    int tile, tiles, step, chunk, chunks;

    // Starts the copy of the next chunk into a stage that no lane reads.
    __device__ __forceinline__ void issue(const rocmfpx_mmv_args & a, const char * x, const char * gate, int to,
                                          int lane) {
        if (tile >= tiles) {
            return;
        }
        const int present    = min(nrows, a.rows - tile * nrows);
        const int64_t offset = (int64_t) chunk * sizes::chunk_bytes;
        const uint32_t bytes = (uint32_t) min((int64_t) sizes::chunk_bytes, a.row_bytes - offset);
        const uint32_t full  = barrier + 8 * to;
        if (lane == 0) {
            rocmfpx_barrier_expect(full, bytes * present * (sizes::streams / nrows));
        }
        __syncwarp();
        if (lane < sizes::streams && lane % nrows < present) {
            const char * from = (lane < nrows ? x : gate) + (tile * nrows + lane % nrows) * a.row_bytes + offset;
            rocmfpx_bulk_copy(data + to * sizes::stage_bytes + lane * sizes::chunk_bytes, from, bytes, full);
        }
        if (++chunk == chunks) {
            chunk = 0;
            tile += step;
        }
    }

    __device__ __forceinline__ void wait() const { rocmfpx_barrier_wait(barrier + 8 * stage, phase); }

    // All lanes have read the stage: fills it again and moves on.
    __device__ __forceinline__ void refill(const rocmfpx_mmv_args & a, const char * x, const char * gate, int lane) {
        __syncwarp();
        issue(a, x, gate, stage, lane);
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// Copies the activations of all columns to shared memory, 16 bytes a thread.
template <int ncols>
static __device__ __forceinline__ void rocmfpx_mmv_stage_activations(const rocmfpx_mmv_args & a,
                                                                     const rocmfpx_mmv_plane & p, uint32_t * to) {
    const int units = a.blocks * 9 / 4;
    for (int i = threadIdx.y * 32 + threadIdx.x; i < ncols * units; i += blockDim.y * 32) {
        const int c       = ncols == 1 ? 0 : i / units;
        const uint4 value = ((const uint4 *) (p.y + 9 * c * a.y_column))[i - c * units];
        ((uint4 *) to)[i] = value;
    }
}

// Arranges them in place.
template <ggml_type type, int ncols>
static __device__ __forceinline__ void rocmfpx_mmv_arrange_staged(const rocmfpx_mmv_args & a, uint32_t * y,
                                                                  int2 * start) {
    for (int i = threadIdx.y * 32 + threadIdx.x; i < ncols * a.blocks; i += blockDim.y * 32) {
        rocmfpx_activations<type> block;
        rocmfpx_mmv_activations<type>(y + 9 * i, block);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            y[9 * i + 1 + k] = block.q[k];
        }
        y[9 * i] = __float_as_uint(block.d);
        if constexpr (rocmfpx_level_offset(type) != 0) {
            start[i] = make_int2(block.start[0], block.start[1]);
        }
    }
    GGML_UNUSED(start);
}

template <ggml_type type>
static __device__ __forceinline__ rocmfpx_activations<type> rocmfpx_mmv_arranged(const uint32_t * y,
                                                                                 const int2 * start) {
    rocmfpx_activations<type> out;
    out.d = __uint_as_float(y[0]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        out.q[i] = y[1 + i];
    }
    out.start[0] = out.start[1] = ROCMFPX_SUM_START;
    if constexpr (rocmfpx_level_offset(type) != 0) {
        const int2 both = *start;
        out.start[0]    = both.x;
        out.start[1]    = both.y;
    }
    GGML_UNUSED(start);
    return out;
}

template <ggml_type type, int ncols, int nrows, int kb, bool gated>
static __device__ __forceinline__ void rocmfpx_mmv_bulk(const rocmfpx_mmv_args & a) {
    using sizes           = rocmfpx_mmv_sizes<type, ncols, nrows, kb, gated>;
    constexpr int streams = sizes::streams;
    constexpr int unroll  = kb > 0 ? kb / sizes::chunk : 1;
    extern __shared__ __align__(128) char rocmfpx_mmv_shared[];
    char * shared      = rocmfpx_mmv_shared;
    const int lane     = threadIdx.x;
    const int warp     = threadIdx.y;
    uint32_t * y       = (uint32_t *) (shared + 8 * ROCMFPX_MMV_MAX_WARPS * a.stages);
    int2 * start       = (int2 *) (y + ncols * a.blocks * 9);
    const char * rings = shared + a.stage_base + warp * a.stages * sizes::stage_bytes;

    rocmfpx_mmv_ring<sizes, nrows> ring;
    ring.barrier = rocmfpx_shared_address(shared) + 8 * warp * a.stages;
    ring.data    = rocmfpx_shared_address(rings);
    ring.stages  = a.stages;
    ring.stage   = 0;
    ring.phase   = 0;
    ring.tile    = blockIdx.x * blockDim.y + warp;
    ring.tiles   = (a.rows + nrows - 1) / nrows;
    ring.step    = gridDim.x * blockDim.y;
    ring.chunk   = 0;
    ring.chunks  = kb > 0 ? unroll : (a.blocks + 32 * sizes::chunk - 1) / (32 * sizes::chunk);
    if (lane == 0) {
        rocmfpx_barriers_init(ring.barrier, a.stages);
    }
    __syncwarp();

    if (!a.early) {
        ggml_cuda_pdl_sync();
    }
    const rocmfpx_mmv_plane p = rocmfpx_mmv_locate(a);
    int tile                  = ring.tile;
    for (int i = 0; i < a.stages; ++i) {
        ring.issue(a, p.x, p.gate, i, lane);
    }
    if (a.early) {
        ggml_cuda_pdl_sync();
    }
    ggml_cuda_pdl_lc();
    rocmfpx_mmv_stage_activations<ncols>(a, p, y);
    __syncthreads();
    rocmfpx_activations<type> resident[sizes::resident ? kb : 1];
    if constexpr (sizes::resident) {
#pragma unroll
        for (int j = 0; j < kb; ++j) {
            rocmfpx_mmv_activations<type>(y + 9 * (32 * j + lane), resident[j]);
        }
    } else {
        rocmfpx_mmv_arrange_staged<type, ncols>(a, y, start);
        __syncthreads();
    }

    const uint32_t first = lane * rocmfpx_bytes(type);
    for (; tile < ring.tiles; tile += ring.step) {
        float acc[ncols][streams] = {};
#pragma unroll unroll
        for (int chunk = 0; chunk < (kb > 0 ? unroll : ring.chunks); ++chunk) {
            ring.wait();
            const uint32_t * stage = (const uint32_t *) (rings + ring.stage * sizes::stage_bytes + (first & ~3u));
#pragma unroll
            for (int j = 0; j < sizes::chunk; ++j) {
                const int block = 32 * (chunk * sizes::chunk + j) + lane;
                const auto load = [&](int r, uint32_t * w) {
                    const int at = (r * sizes::chunk_bytes + j * sizes::step_bytes) / 4;
                    rocmfpx_mmv_load_aligned<type>(stage + at, 8 * (first & 3), w);
                };
                if constexpr (sizes::resident) {
                    const auto from = [&](int) { return resident[chunk * sizes::chunk + j]; };
                    rocmfpx_mmv_step<type, ncols, streams>(load, from, acc);
                } else if (kb > 0 || block < a.blocks) {
                    const auto from = [&](int c) {
                        const int at = c * a.blocks + block;
                        return rocmfpx_mmv_arranged<type>(y + 9 * at, start + at);
                    };
                    rocmfpx_mmv_step<type, ncols, streams>(load, from, acc);
                }
            }
            ring.refill(a, p.x, p.gate, lane);
        }
        rocmfpx_mmv_finish<ncols, nrows, gated>(a, p, acc, tile * nrows, lane);
    }
}

#endif // ROCMFPX_BULK_AVAILABLE
