// The header of this name of HIP 5.2.3, with what later releases added and ggml-cuda uses.
#pragma once

#include_next <hip/hip_runtime.h>

#ifndef hipHostRegisterReadOnly
#    define hipHostRegisterReadOnly 0x08
#endif

static inline hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event) {
    return hipStreamWaitEvent(stream, event, 0);
}
