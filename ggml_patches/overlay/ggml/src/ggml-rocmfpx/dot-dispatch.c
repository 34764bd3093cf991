// Owns: which dot product kernels this machine runs. One binary holds all engines of its architecture.

#include "dot.h"
#include "rocmfpx-codec.h"

#include <stdatomic.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#endif

#define DEFINE_SCALAR(stem, codec)                                                                                     \
    static float dot_##stem(int64_t n_blocks, const uint8_t * x, const uint8_t * y) {                                  \
        return rocmfpx_dot_q8_0(&rocmfpx_codec_##codec, n_blocks * QK_ROCMFPX, x, y);                                  \
    }
DEFINE_SCALAR(fp4, rocmfp4)
DEFINE_SCALAR(fp4_fast, rocmfp4_fast)
DEFINE_SCALAR(fp6, rocmfp6)
DEFINE_SCALAR(fp8, rocmfp8)
DEFINE_SCALAR(fp3, rocmfp3)
DEFINE_SCALAR(fp2, rocmfp2)

static const rocmfpx_dot dot_scalar[ROCMFPX_FORMATS] = {dot_fp4, dot_fp4_fast, dot_fp6, dot_fp8, dot_fp3, dot_fp2};

static bool always(void) {
    return true;
}

#if defined(__x86_64__) && defined(__GNUC__)

static bool has_f16c(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && has_f16c();
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
}

#define N_ENGINES 3
static const rocmfpx_kernels engines[N_ENGINES] = {
    {"scalar", always, dot_scalar, NULL},
    {"avx2", has_avx2, rocmfpx_dot_avx2, rocmfpx_tile_avx2},
    {"avx512", has_avx512, rocmfpx_dot_avx512, rocmfpx_tile_avx512},
};

#elif defined(__aarch64__) && defined(__GNUC__)

static bool has_dotprod(void) {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__) || defined(__ARM_FEATURE_DOTPROD)
    return true;
#else
    return false;
#endif
}

#define N_ENGINES 2
static const rocmfpx_kernels engines[N_ENGINES] = {
    {"scalar", always, dot_scalar, NULL},
    {"neon", has_dotprod, rocmfpx_dot_neon, rocmfpx_tile_neon},
};

#else

#define N_ENGINES 1
static const rocmfpx_kernels engines[N_ENGINES] = {{"scalar", always, dot_scalar, NULL}};

#endif

const rocmfpx_kernels * rocmfpx_kernels_at(int i) {
    return i >= 0 && i < N_ENGINES ? &engines[i] : NULL;
}

// Threads that meet here first find the same answer.
const rocmfpx_kernels * rocmfpx_kernels_best(void) {
    static _Atomic(const rocmfpx_kernels *) best;
    const rocmfpx_kernels * found = atomic_load_explicit(&best, memory_order_acquire);
    if (found == NULL) {
        for (int i = 0; i < N_ENGINES; ++i) {
            found = engines[i].works() ? &engines[i] : found;
        }
        atomic_store_explicit(&best, found, memory_order_release);
    }
    return found;
}

#define DEFINE_VEC_DOT(stem, format)                                                                                   \
    void ggml_vec_dot_##stem##_q8_0(int n, float * GGML_RESTRICT s, size_t bs, const void * GGML_RESTRICT vx,          \
                                    size_t bx, const void * GGML_RESTRICT vy, size_t by, int nrc) {                    \
        (void) bs, (void) bx, (void) by, (void) nrc;                                                                   \
        *s = rocmfpx_kernels_best()->dot[format](n / QK_ROCMFPX, (const uint8_t *) vx, (const uint8_t *) vy);          \
    }
DEFINE_VEC_DOT(rocmfp4, ROCMFPX_FP4)
DEFINE_VEC_DOT(rocmfp4_fast, ROCMFPX_FP4_FAST)
DEFINE_VEC_DOT(rocmfp6, ROCMFPX_FP6)
DEFINE_VEC_DOT(rocmfp8, ROCMFPX_FP8)
DEFINE_VEC_DOT(rocmfp3, ROCMFPX_FP3)
DEFINE_VEC_DOT(rocmfp2, ROCMFPX_FP2)
