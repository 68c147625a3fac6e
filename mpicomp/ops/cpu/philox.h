// Random numbers that depend on what they are for, not on who draws them: Philox4x32-10 (reference/random.py).
// Kernels that need them work in blocks of at most random_block elements and fill() one block at a time.
#pragma once

#include "arrays.h"
#include "isa.h"

struct Key {
    std::uint64_t seed;
    std::uint32_t step, worker;
};

Key key_of(const py::object& key);  // from (seed, step, worker), or a clear error
std::uint64_t first_of(std::int64_t first);

constexpr std::size_t random_block = 1024;

class RandomBlock {
    static constexpr std::size_t slack = 128;  // whole vectors of counters are computed
    alignas(64) std::uint32_t words_[random_block + slack];

public:
    // Elements [first, first + n) of the key's stream, n <= random_block; valid until the next call.
    const std::uint32_t* fill(Key key, std::uint64_t first, std::size_t n);
};

// [0, 1) in multiples of 2^-24. Signed integers convert in one instruction.
KERNEL float uniform_of(std::uint32_t word) {
    return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24f;
}
