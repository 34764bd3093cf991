// Owns: what this library was made from. The values come from CMake as definitions of this file alone.

#include "entry.h"

#include "ggml-backend.h"

#include <nlohmann/json.hpp>

int32_t lucebox_abi_version(void) {
    return LUCEBOX_ABI_VERSION;
}

int32_t lucebox_build_info(char * buf, size_t size) {
    return lucebox_entry([&]() {
        nlohmann::json backends = nlohmann::json::array();
        for (size_t i = 0; i < ggml_backend_reg_count(); i++) {
            backends.push_back(ggml_backend_reg_name(ggml_backend_reg_get(i)));
        }
        const nlohmann::json info = {
            {"abi_version", LUCEBOX_ABI_VERSION},
            {"upstream_build", LUCEBOX_UPSTREAM_BUILD},
            {"upstream_commit", LUCEBOX_UPSTREAM_COMMIT},
            {"series_sha256", LUCEBOX_SERIES_SHA256},
            {"backends", backends},
            {"compiler", LUCEBOX_COMPILER},
        };
        return lucebox_put_text(info.dump(), buf, size);
    });
}
