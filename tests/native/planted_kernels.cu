// Kernels with one fault each, for the test of tools/check_device_code.py. None of them computes anything of use.
#if defined(GGML_USE_HIP)
#include <hip/hip_runtime.h>
#endif

// no fault; a loop, and on AMD one byte permutation a pass
__global__ void rocmfpx_planted_clean(unsigned * data, int n) {
    unsigned sum = 0;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
#if defined(GGML_USE_HIP)
        sum += __builtin_amdgcn_perm(data[i], sum, 0x05010400);
#else
        sum += data[i];
#endif
    }
    data[threadIdx.x] = sum;
}

// an array with an index that only the run knows
__global__ void rocmfpx_planted_scratch(float * data, int n) {
    float values[64];
    for (int i = 0; i < 64; ++i) {
        values[i] = data[i * n];
    }
    values[n] = 3.0f;
    float sum = 0.0f;
    for (int i = 0; i < 64; ++i) {
        sum += values[i] * values[(i * 7) % 64];
    }
    data[threadIdx.x] = sum;
}

// more values alive at once than a lane of so large a workgroup has registers
template <int COUNT> __global__ void __launch_bounds__(1024, 1) rocmfpx_planted_spills(float * data) {
    float values[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        values[i] = data[i * 77 + threadIdx.x];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        data[i * 33 + threadIdx.x] = values[i] * values[(i * 5 + 1) % COUNT];
    }
}

template __global__ void rocmfpx_planted_spills<200>(float * data);

// calls itself twice, which no compiler turns into a loop
__device__ __noinline__ int planted_recursion(int * data, int depth) {
    return depth < 2 ? data[0] : planted_recursion(data, depth - 1) ^ planted_recursion(data, depth - data[depth]);
}

__global__ void rocmfpx_planted_stack(int * data) {
    data[threadIdx.x] = planted_recursion(data, data[0]);
}

__global__ void rocmfpx_planted_lds(float * data) {
    __shared__ float shared[32];
    shared[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = shared[31 - threadIdx.x];
}

// scratch as above, under a name that is not ours
__global__ void planted_upstream(float * data, int n) {
    float values[64];
    for (int i = 0; i < 64; ++i) {
        values[i] = data[i * n];
    }
    values[n] = 3.0f;
    float sum = 0.0f;
    for (int i = 0; i < 64; ++i) {
        sum += values[i] * values[(i * 7) % 64];
    }
    data[threadIdx.x] = sum;
}
