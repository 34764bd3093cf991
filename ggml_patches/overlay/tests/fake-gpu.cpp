#include "fake-gpu.h"

#include "../ggml/src/ggml-backend-impl.h"
#include "ggml-cpu.h"

#include <string>

std::function<bool(const ggml_tensor *)> fake_gpu_supports = [](const ggml_tensor *) { return true; };

namespace {

struct fake_gpu {
    std::string name;
    std::string device_name;
    bool with_device;
    ggml_backend_reg reg;
    ggml_backend_device device;
    ggml_backend_buffer_type buft;
    ggml_backend_buffer_type pinned; // memory of the host that the device reads fast
};

fake_gpu & of(ggml_backend_dev_t dev) {
    return *(fake_gpu *) dev->context;
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer) {
        buffer->buft = buft;
    }
    return buffer;
}

ggml_guid_t guid() {
    static ggml_guid id = {0x66, 0x61, 0x6b, 0x65, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    return &id;
}

ggml_backend_t init_backend(ggml_backend_dev_t dev, const char *) {
    ggml_backend_i iface = {};
    iface.get_name       = [](ggml_backend_t backend) { return of(backend->device).name.c_str(); };
    iface.free           = [](ggml_backend_t backend) { delete backend; };
    iface.graph_compute  = [](ggml_backend_t, ggml_cgraph *) { return GGML_STATUS_FAILED; };
    return new ggml_backend{guid(), iface, dev, nullptr};
}

void fill_device(fake_gpu & gpu) {
    ggml_backend_device_i & iface = gpu.device.iface;

    iface.get_name        = [](ggml_backend_dev_t dev) { return of(dev).device_name.c_str(); };
    iface.get_description = [](ggml_backend_dev_t) { return "stand-in for a GPU"; };
    iface.get_memory      = [](ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = 8ull << 30; };
    iface.get_type        = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
    iface.get_props       = [](ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
        *props             = {};
        props->name        = of(dev).device_name.c_str();
        props->description = "stand-in for a GPU";
        props->type        = GGML_BACKEND_DEVICE_TYPE_GPU;
    };
    iface.init_backend         = init_backend;
    iface.get_buffer_type      = [](ggml_backend_dev_t dev) { return &of(dev).buft; };
    iface.get_host_buffer_type = [](ggml_backend_dev_t dev) { return &of(dev).pinned; };
    iface.supports_op          = [](ggml_backend_dev_t, const ggml_tensor * op) { return fake_gpu_supports(op); };
    iface.supports_buft = [](ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft) { return buft == &of(dev).buft; };
    gpu.device.reg      = &gpu.reg;
    gpu.device.context  = &gpu;
}

} // namespace

void fake_gpu_register(const char * name, bool with_device) {
    auto * gpu =
        new fake_gpu{name, std::string(name) + "0", with_device, {}, {}, {}, {}}; // lives as long as the registry
    fill_device(*gpu);

    gpu->buft.iface.get_name     = [](ggml_backend_buffer_type_t buft) { return of(buft->device).device_name.c_str(); };
    gpu->buft.iface.alloc_buffer = alloc_buffer;
    gpu->buft.iface.get_alignment = [](ggml_backend_buffer_type_t) {
        return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
    };
    gpu->buft.iface.is_host = [](ggml_backend_buffer_type_t) { return false; };
    gpu->buft.device        = &gpu->device;

    gpu->pinned                = gpu->buft;
    gpu->pinned.iface.get_name = [](ggml_backend_buffer_type_t) { return "pinned"; };
    gpu->pinned.iface.is_host  = [](ggml_backend_buffer_type_t) { return true; };

    gpu->reg.api_version            = GGML_BACKEND_API_VERSION;
    gpu->reg.context                = gpu;
    gpu->reg.iface.get_name         = [](ggml_backend_reg_t reg) { return ((fake_gpu *) reg->context)->name.c_str(); };
    gpu->reg.iface.get_device_count = [](ggml_backend_reg_t reg) {
        return (size_t) ((fake_gpu *) reg->context)->with_device;
    };
    gpu->reg.iface.get_device = [](ggml_backend_reg_t reg, size_t) { return &((fake_gpu *) reg->context)->device; };
    ggml_backend_register(&gpu->reg);
}
