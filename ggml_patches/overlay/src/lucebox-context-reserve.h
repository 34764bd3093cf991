#pragma once

// Owns: makes a context reserve the buffers of the graphs it would run now. Upstream does so at the next batch only,
// which never comes for a context that has no memory.

#include "llama.h"

// Throws std::runtime_error when the buffers cannot be had.
LLAMA_API void lucebox_context_reserve(llama_context * ctx);
