#pragma once

// Owns: a CUDA graph of kernels that read memory and do nothing else, the bound that matrix products are held
// against. Only builds with CUDA have it.

#include <cstddef>
#include <memory>
#include <vector>

enum class read_form {
    plain,     // an ordinary node a matrix
    early,     // programmatic dependent launch, loads issued before the wait for the node before
    quantised, // the same behind a node that writes activations as Q8_1, as a product in ggml is two nodes
};

class gpu_read {
  public:
    // starts: device address of each node's bytes, aligned to 16. activations: values that a quantising node writes.
    // Throws std::runtime_error with CUDA's words.
    gpu_read(const std::vector<const void *> & starts, size_t bytes, read_form form, size_t activations);
    ~gpu_read();

    void launch();
    void wait();

  private:
    struct state;
    std::unique_ptr<state> s;
};
