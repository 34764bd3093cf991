#pragma once

// Owns: what every entry of the C API does alike, turning exceptions into codes and text into the caller's buffer.

#include "lucebox.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <string>

// Runs body, which returns a result of the API; no exception leaves it.
template <typename Body> int32_t lucebox_entry(Body body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return LUCEBOX_OUT_OF_MEMORY;
    } catch (...) {
        return LUCEBOX_INTERNAL;
    }
}

// Writes text with its closing zero byte if it fits; returns the size needed.
inline int32_t lucebox_put_text(const std::string & text, char * buf, size_t size) {
    const size_t needed = text.size() + 1;
    if (needed > (size_t) std::numeric_limits<int32_t>::max() || (buf == nullptr && size > 0)) {
        return LUCEBOX_BAD_ARGUMENT;
    }
    if (size >= needed) {
        memcpy(buf, text.c_str(), needed);
    }
    return (int32_t) needed;
}
