#pragma once

// Owns: the bulk way of rocmfpx-mmv-kernel.cuh. Rows start at multiples of 16 bytes.
//
// Shared memory: barriers of all warps, activations of all columns as block_q8_1 (arranged in place unless they go to
// registers), the start of the sums where the levels have an offset, then the rings of the warps.

#include "rocmfpx-mmv-kernel.cuh"

#ifdef ROCMFPX_BULK_AVAILABLE

// The ring of a warp: what it copies next and what it waits for next. Equal in all lanes.
template <typename sizes, int nrows, int kb> struct rocmfpx_mmv_ring {
    static constexpr bool gated = sizes::streams != nrows;
    uint32_t barrier; // of stage 0, the others behind it
    uint32_t data;    // shared address of stage 0
    int stages, stage;
    uint32_t phase;
    const char * x; // first row of the next tile
    const char * gate;
    int rows_left; // from there to the end
    int step_rows;
    int chunk, chunks;

    __device__ __forceinline__ void start(const rocmfpx_mmv_args & a, const rocmfpx_mmv_plane & p, int row0) {
        x    = p.x + row0 * a.row_bytes;
        gate = p.gate + row0 * a.row_bytes;
        for (int i = 0; i < stages; ++i) {
            issue(a, i);
        }
    }

    // Starts the copy of the next chunk into a stage that no lane reads.
    __device__ __forceinline__ void issue(const rocmfpx_mmv_args & a, int to) {
        if (rows_left <= 0) {
            return;
        }
        const int present   = min(nrows, rows_left);
        const uint32_t full = barrier + 8 * to;
        const uint32_t into = data + to * sizes::stage_bytes;
        if constexpr (kb > 0) { // whole rows, one behind the other
            if (rocmfpx_elect()) {
                const uint32_t bytes = present * sizes::chunk_bytes;
                rocmfpx_barrier_expect(full, gated ? 2 * bytes : bytes);
                rocmfpx_bulk_copy(into, x, bytes, full);
                if constexpr (gated) {
                    rocmfpx_bulk_copy(into + nrows * sizes::chunk_bytes, gate, bytes, full);
                }
            }
        } else if (rocmfpx_elect()) {
            const int64_t offset = (int64_t) chunk * sizes::chunk_bytes;
            const uint32_t bytes = (uint32_t) min((int64_t) sizes::chunk_bytes, a.row_bytes - offset);
            rocmfpx_barrier_expect(full, bytes * present * (gated ? 2 : 1));
#pragma unroll
            for (int r = 0; r < sizes::streams; ++r) {
                if (r % nrows < present) {
                    const char * from = (r < nrows ? x : gate) + r % nrows * a.row_bytes + offset;
                    rocmfpx_bulk_copy(into + r * sizes::chunk_bytes, from, bytes, full);
                }
            }
        }
        if (kb > 0 || ++chunk == chunks) {
            chunk = 0;
            x += step_rows * a.row_bytes;
            gate += step_rows * a.row_bytes;
            rows_left -= step_rows;
        }
    }

    __device__ __forceinline__ void wait() const { rocmfpx_barrier_wait(barrier + 8 * stage, phase); }

    // All lanes have read the stage: fills it again and moves on.
    __device__ __forceinline__ void refill(const rocmfpx_mmv_args & a) {
        __syncwarp();
        issue(a, stage);
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

// Adds one stage. first: offset of the lane's block in 32; block: its number in the row.
template <ggml_type type, int ncols, typename sizes>
static __device__ __forceinline__ void rocmfpx_mmv_bulk_stage(const char * stage, uint32_t first, int block, int blocks,
                                                              const rocmfpx_activations<type> * resident,
                                                              const uint32_t * y, const int2 * start,
                                                              float (&acc)[ncols][sizes::streams]) {
    const uint32_t * from = (const uint32_t *) (stage + (first & ~3u));
#pragma unroll
    for (int j = 0; j < sizes::chunk; ++j) {
        const auto load = [&](int r, uint32_t * w) {
            const int at = (r * sizes::chunk_bytes + j * sizes::step_bytes) / 4;
            rocmfpx_mmv_load_aligned<type>(from + at, 8 * (first & 3), w);
        };
        if constexpr (sizes::resident) {
            rocmfpx_mmv_step<type, ncols, sizes::streams>(load, [&](int) { return resident[j]; }, acc);
        } else if (block + 32 * j < blocks) {
            const auto activations = [&](int c) {
                const int at = c * blocks + block + 32 * j;
                return rocmfpx_mmv_arranged<type>(y + 9 * at, start + at);
            };
            rocmfpx_mmv_step<type, ncols, sizes::streams>(load, activations, acc);
        }
    }
}

template <ggml_type type, int ncols, int nrows, int kb, bool gated>
static __device__ __forceinline__ void rocmfpx_mmv_bulk(const rocmfpx_mmv_args & a) {
    using sizes           = rocmfpx_mmv_sizes<type, ncols, nrows, kb, gated>;
    constexpr int streams = sizes::streams;
    extern __shared__ __align__(128) char rocmfpx_mmv_shared[];
    char * shared      = rocmfpx_mmv_shared;
    const int lane     = threadIdx.x;
    const int warp     = __shfl_sync(0xffffffff, threadIdx.y, 0); // tells the compiler that lanes agree
    uint32_t * y       = (uint32_t *) (shared + 8 * ROCMFPX_MMV_MAX_WARPS * a.stages);
    int2 * start       = (int2 *) (y + ncols * a.blocks * 9);
    const char * rings = shared + a.stage_base + warp * a.stages * sizes::stage_bytes;
    int row            = (blockIdx.x * blockDim.y + warp) * nrows;

    rocmfpx_mmv_ring<sizes, nrows, kb> ring;
    ring.barrier   = rocmfpx_shared_address(shared) + 8 * warp * a.stages;
    ring.data      = rocmfpx_shared_address(rings);
    ring.stages    = a.stages;
    ring.stage     = 0;
    ring.phase     = 0;
    ring.rows_left = a.rows - row;
    ring.step_rows = gridDim.x * blockDim.y * nrows;
    ring.chunk     = 0;
    ring.chunks    = kb > 0 ? 1 : (a.blocks + 32 * sizes::chunk - 1) / (32 * sizes::chunk);
    rocmfpx_barriers_init(ring.barrier, a.stages);

    rocmfpx_mmv_plane p = rocmfpx_mmv_locate(a);
    if (a.early) {
        ring.start(a, p, row);
        ggml_cuda_pdl_sync();
    } else {
        ggml_cuda_pdl_sync();
        rocmfpx_mmv_choose(a, p);
        ring.start(a, p, row);
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
    for (; row < a.rows; row += ring.step_rows) {
        float acc[ncols][streams] = {};
        for (int chunk = 0; chunk < ring.chunks; ++chunk) {
            ring.wait();
            const char * stage = rings + ring.stage * sizes::stage_bytes;
            rocmfpx_mmv_bulk_stage<type, ncols, sizes>(stage, first, 32 * sizes::chunk * chunk + lane, a.blocks,
                                                       resident, y, start, acc);
            ring.refill(a);
        }
        rocmfpx_mmv_finish<ncols, nrows, gated>(a, p, acc, row, lane);
    }
}

#endif // ROCMFPX_BULK_AVAILABLE
