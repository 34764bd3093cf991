#pragma once

// Owns: the narrow C API that Python and other programs bind. Opaque handles, plain numbers, UTF-8 text.
// Refuses: structs by value and tensors; neither crosses this border, so a field can move without harm.
//
// Results are int32_t: 0 and up are good, below 0 is one of lucebox_code. No call throws.
// Text is returned into the caller's buffer: the result is the size needed with its closing zero byte, and the
// buffer is written only if it is at least that large (ask with NULL and 0, then call again).

#include <stddef.h>
#include <stdint.h>

#if defined(LUCEBOX_BUILD) && defined(__GNUC__)
#define LUCEBOX_API __attribute__((visibility("default")))
#else
#define LUCEBOX_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Raised when the meaning of a call changes, not when a call is added. Compare with lucebox_abi_version() at load.
#define LUCEBOX_ABI_VERSION 1

enum lucebox_code {
    LUCEBOX_OK               = 0,
    LUCEBOX_BAD_ARGUMENT     = -1,
    LUCEBOX_BAD_STATE        = -2,
    LUCEBOX_INCOMPATIBLE     = -3,
    LUCEBOX_UNSUPPORTED      = -4,
    LUCEBOX_OUT_OF_MEMORY    = -5,
    LUCEBOX_DECODE_FAILED    = -6, // state restored
    LUCEBOX_CANCELLED        = -7, // state restored
    LUCEBOX_STATE_LOST       = -8, // the sequence is empty now
    LUCEBOX_BUFFER_TOO_SMALL = -9,
    LUCEBOX_INTERNAL         = -10, // an exception that no call expects
};

// The ABI version of the loaded library.
LUCEBOX_API int32_t lucebox_abi_version(void);

// One JSON object: abi_version, upstream_build, upstream_commit, series_sha256 (the patch series and overlay it
// was made from, or "unknown"), backends (names, as registered), compiler. Returns the size needed.
LUCEBOX_API int32_t lucebox_build_info(char * buf, size_t size);

#ifdef __cplusplus
}
#endif
