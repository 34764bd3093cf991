#ifndef _GNU_SOURCE
#define _GNU_SOURCE // fopencookie
#endif

#include "ring-stream.h"

#include <algorithm>
#include <cstring>
#include <sys/types.h>

struct open_stream {
    std::unique_ptr<ring_stream> stream;
    uint64_t position = 0;
};

// Copies up to n bytes from position, which is below the end; returns how many, at least 1.
static size_t copy_some(const ring_stream & stream, uint64_t position, char * out, uint64_t n) {
    const auto after       = std::upper_bound(stream.parts.begin(), stream.parts.end(), position,
                                              [](uint64_t at, const ring_part & part) { return at < part.offset; });
    const ring_part & part = *(after - 1);
    const uint64_t at      = position - part.offset;
    if (at >= part.size) { // between parts
        n = std::min(n, (after == stream.parts.end() ? stream.size : after->offset) - position);
        memset(out, 0, n);
        return n;
    }
    const uint64_t in_ring = (part.ring_start + at) % part.ring->size();

    n = std::min({n, part.size - at, part.ring->size() - in_ring});
    memcpy(out, part.ring->data() + in_ring, n);
    return n;
}

static ssize_t on_read(void * cookie, char * out, size_t n) {
    open_stream & file   = *(open_stream *) cookie;
    const uint64_t total = std::min<uint64_t>(n, file.stream->size - file.position);
    for (uint64_t done = 0; done < total;) {
        const size_t copied = copy_some(*file.stream, file.position, out + done, total - done);
        file.position += copied;
        done += copied;
    }
    return total;
}

static int on_seek(void * cookie, off64_t * offset, int whence) {
    open_stream & file   = *(open_stream *) cookie;
    const int64_t size   = file.stream->size;
    const int64_t base   = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? (int64_t) file.position : size;
    const int64_t target = base + *offset;
    if (target < 0 || target > size) {
        return -1;
    }
    file.position = target;
    *offset       = target;
    return 0;
}

static int on_close(void * cookie) {
    delete (open_stream *) cookie;
    return 0;
}

FILE * ring_stream_open(std::unique_ptr<ring_stream> stream) {
    const cookie_io_functions_t functions = {on_read, nullptr, on_seek, on_close};
    open_stream * cookie                  = new open_stream{std::move(stream)};
    FILE * file                           = fopencookie(cookie, "rb", functions);
    if (file == nullptr) {
        delete cookie;
    }
    return file;
}
