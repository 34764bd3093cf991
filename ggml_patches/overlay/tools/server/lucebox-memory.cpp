#include "lucebox-memory.h"

#include "../../src/llama-ext.h"
#include "../../src/lucebox-context-reserve.h"
#include "common.h"
#include "json.h"
#include "llama-cpp.h"
#include "log.h"
#include "speculative.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

namespace {

// A model and a context that have sizes and no memory.
struct dry_model {
    llama_model_ptr model;
    llama_context_ptr ctx;

    dry_model(common_params & params, llama_context_params cparams) {
        auto mparams      = common_model_params_to_llama(params);
        mparams.no_alloc  = true;
        mparams.load_mode = LLAMA_LOAD_MODE_NONE;
        model.reset(llama_model_load_from_file(params.model.path.c_str(), mparams));
        ctx.reset(model ? llama_init_from_model(model.get(), cparams) : nullptr);
        if (!ctx) {
            throw std::runtime_error("'" + params.model.path + "' cannot be loaded");
        }
    }
};

// Adds what a model takes to the entry of each place, by the name of its device; CPU and host buffers are "host".
void add(common_json & places, const dry_model & dry, const char * role) {
    for (const auto & [buft, data] : llama_get_memory_breakdown(dry.ctx.get())) {
        ggml_backend_dev_t device = ggml_backend_buft_get_device(buft);
        const bool host =
            ggml_backend_buft_is_host(buft) || !device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
        common_json & place = places[host ? "host" : ggml_backend_dev_name(device)];
        if (!place.contains(role)) {
            device      = host ? ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) : device;
            size_t free = 0, total = 0;
            ggml_backend_dev_memory(device, &free, &total);
            place["free"]  = free;
            place["total"] = total;
            place[role]    = {{"model", 0}, {"context", 0}, {"compute", 0}};
        }
        place[role]["model"]   = place[role]["model"].get<size_t>() + data.model;
        place[role]["context"] = place[role]["context"].get<size_t>() + data.context;
        place[role]["compute"] = place[role]["compute"].get<size_t>() + data.compute;
    }
}

// The drafter beside its target, both set up to draft: that takes buffers of its own.
dry_model dry_drafter(const common_params & params, const dry_model & target) {
    common_params draft = common_base_params_to_speculative(params);
    auto cparams        = common_context_params_to_llama(draft);
    cparams.n_ctx       = llama_n_ctx(target.ctx.get());
    cparams.n_rs_seq    = 0;
    cparams.ctx_other   = target.ctx.get();
    dry_model drafter(draft, cparams);

    common_params_speculative speculative = params.speculative;
    speculative.draft.ctx_tgt             = target.ctx.get();
    speculative.draft.ctx_dft             = drafter.ctx.get();
    const common_speculative_ptr spec(common_speculative_init(speculative, params.n_parallel));
    lucebox_context_reserve(target.ctx.get());
    lucebox_context_reserve(drafter.ctx.get());
    return drafter;
}

} // namespace

int lucebox_memory_plan_print(common_params & params) {
    const auto limits = common_speculative_get_output_limits(params.n_batch, params.n_parallel,
                                                             common_speculative_n_max(&params.speculative));

    params.n_outputs_max         = std::max<int32_t>(1, limits.total);
    params.n_outputs_max_per_seq = std::max<int32_t>(1, limits.per_seq);
    try {
        const dry_model target(params, common_context_params_to_llama(params));
        common_json places = common_json::object();
        if (params.speculative.has_dft()) {
            add(places, dry_drafter(params, target), "drafter");
        }
        add(places, target, "target");
        const common_json plan = {{"n_ctx", llama_n_ctx(target.ctx.get())},
                                  {"n_ctx_seq", llama_n_ctx_seq(target.ctx.get())},
                                  {"places", places}};
        printf("%s\n", plan.dump().c_str());
        return 0;
    } catch (const std::exception & e) {
        LOG_ERR("no memory plan: %s\n", e.what());
        return 1;
    }
}
