#pragma once

// Owns: bulk copies from global to shared memory that a barrier in shared memory counts (compute capability 9.0 and
// newer). One lane starts a copy of any size; no register holds data in flight.
// Refuses: addresses and sizes that are no multiple of 16.

#include "common.cuh"

#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)
static constexpr bool rocmfpx_bulk_compiled = true; // for some device of this build
#if __CUDA_ARCH__ >= GGML_CUDA_CC_HOPPER
#define ROCMFPX_BULK_AVAILABLE // for this one
#endif
#else
static constexpr bool rocmfpx_bulk_compiled = false;
#endif

#ifdef ROCMFPX_BULK_AVAILABLE

static __device__ __forceinline__ uint32_t rocmfpx_shared_address(const void * p) {
    return (uint32_t) __cvta_generic_to_shared(p);
}

// True in one lane of a full warp. The branches it guards cost least when their addresses are equal in all lanes.
static __device__ __forceinline__ bool rocmfpx_elect() {
    uint32_t chosen;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(chosen));
    return chosen != 0;
}

// Barriers of one warp, before any lane waits on them.
static __device__ __forceinline__ void rocmfpx_barriers_init(uint32_t barrier, int n) {
    if (rocmfpx_elect()) {
        for (int i = 0; i < n; ++i) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier + 8 * i) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
}

// The phase of the barrier ends when `bytes` have arrived.
static __device__ __forceinline__ void rocmfpx_barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void rocmfpx_bulk_copy(uint32_t to, const void * from, uint32_t bytes,
                                                         uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
                 : "memory");
}

static __device__ __forceinline__ void rocmfpx_barrier_wait(uint32_t barrier, uint32_t phase) {
    uint32_t done;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(phase)
                     : "memory");
    } while (done == 0);
}

#endif // ROCMFPX_BULK_AVAILABLE
