// Which bits of a byte are set: index lists are written from it eight places at a time, without a branch an index.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

struct SetBits {
    std::uint8_t at[256][8], count[256];  // at: positions of the bits that are set, ascending; the rest is zero
};

constexpr SetBits make_set_bits() {
    SetBits table = {};
    for (int byte = 0; byte < 256; ++byte)
        for (int bit = 0; bit < 8; ++bit)
            if (byte >> bit & 1) table.at[byte][table.count[byte]++] = static_cast<std::uint8_t>(bit);
    return table;
}

inline constexpr SetBits set_bits = make_set_bits();

// out[0], out[1], ... = first + position of every bit of `byte` that is set; returns how many. All eight places of
// `out` are written.
template <class I>
KERNEL std::size_t write_set_bits(std::uint8_t byte, std::size_t first, I* out) {
    for (std::size_t lane = 0; lane < 8; ++lane) out[lane] = static_cast<I>(first) + set_bits.at[byte][lane];
    return set_bits.count[byte];
}

// Bit i of the result is byte i of `flags`, each of which is 0 or 1.
KERNEL std::uint8_t flags_to_byte(std::uint64_t flags) {
    return static_cast<std::uint8_t>(flags * 0x0102040810204080 >> 56);
}
