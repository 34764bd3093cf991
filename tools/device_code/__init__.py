"""Device code without a device: kernels compiled for AMD and NVIDIA GPUs, and the compilers' reports read."""
