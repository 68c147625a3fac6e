// Several vectors reduced in one pass: what the ranks of a node do to each other's slices.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

struct Destination {
    char* to;
    bool stream;  // past the caches
};

// dst[0..] = (src[0] OP src[1] OP ...) * factor, from left to right whatever the length, so the bits depend on the order of the
// sources alone. Offsets are in bytes; a destination may be one of the sources.
struct MultiReduce {
    std::vector<Destination> dst;
    std::vector<const char*> src;
    std::size_t n = 0;  // elements
    double factor = 1;  // rounded to the precision in which floats are reduced; integers know none
};

using MultiKernel = void (*)(const MultiReduce&);

// The kernel of a reduction ("sum", "band", ...) and an element type ("float32", "bfloat16", ...); null if there is
// none. Half precision is reduced in float32 and rounded once.
MultiKernel multi_kernel(const std::string& op, const std::string& kind);
