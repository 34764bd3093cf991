#pragma once

// Owns: a read-only FILE whose bytes exist nowhere at full length. It is a list of parts, each a walk around a ring
// of bytes in memory; between parts it reads as zeros.
// Refuses: writing, and seeking beyond its end.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

typedef std::vector<uint8_t> bytes;

// size bytes at offset of the stream: those of the ring from ring_start on, around and around.
struct ring_part {
    uint64_t offset;
    uint64_t size;
    const bytes * ring;
    uint64_t ring_start;
};

struct ring_stream {
    std::vector<ring_part> parts;              // by offset, the first one at 0
    std::vector<std::unique_ptr<bytes>> rings; // owned here, used by parts
    uint64_t size = 0;

    bytes * new_ring(uint64_t ring_size) {
        rings.push_back(std::make_unique<bytes>(ring_size));
        return rings.back().get();
    }
};

// Returns NULL if the system cannot open a stream; fclose frees it.
FILE * ring_stream_open(std::unique_ptr<ring_stream> stream);
