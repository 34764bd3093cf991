#include "lucebox-context-reserve.h"

#include "llama-context.h"

void lucebox_context_reserve(llama_context * ctx) {
    ctx->sched_reserve();
}
