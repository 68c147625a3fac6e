// Blocks of error-bounded codes: 64 integers on a grid, their differences in bit planes; see oracle/bounded.py.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "isa.h"
#include "lanes.h"

namespace bounded {

constexpr std::size_t block = 64;
constexpr std::uint8_t escaped = 0xFF;
constexpr double whole = 6755399441055744;  // 1.5 * 2^52: x + whole has x, rounded, in its low bits

template <class T>
struct Type;
template <>
struct Type<float> { using Word = std::uint32_t; using Signed = std::int32_t; };
template <>
struct Type<double> { using Word = std::uint64_t; using Signed = std::int64_t; };
template <class T>
using Word = typename Type<T>::Word;
template <class T>
using Signed = typename Type<T>::Signed;

struct Grid {
    double bound, step, inverse, largest;

    // Whether every integer up to the largest is within the bound of its value: `scaled` has an error of 2^-52 of itself.
    KERNEL bool is_close() const { return step > 1e-300 && step * (0.5 + largest * 0x1p-50) <= bound; }
};

KERNEL std::uint64_t word_of(double x) {
    return static_cast<std::uint64_t>(bits_of(x));
}

template <class T>
KERNEL double grid_integer(Word<T> q) {
    if constexpr (sizeof(T) == 4) {
        return static_cast<std::int32_t>(q);
    } else {  // below 2^51 in magnitude
        const std::uint64_t bits = q + word_of(whole);
        double x;
        std::memcpy(&x, &bits, 8);
        return x - whole;
    }
}

template <class T>
constexpr std::size_t first_bytes(int header) {
    return header >> 6 ? sizeof(T) >> (3 - (header >> 6)) : 0;
}

constexpr int fields[] = {0, 33, 50, 63};  // first value of a header's low bits for each order of differences
constexpr int shortest = 3;                // bits of second differences, from which third ones are not tried

constexpr int order_of(int header) {
    return 1 + ((header & 63) >= fields[1]) + ((header & 63) >= fields[2]);
}

// Bits of a code for the low bits of a header, counted from its order's first; those of float64 above 27 are steps.
template <class T>
constexpr int bits_of_field(int order, int field) {
    return sizeof(T) == 8 && order == 1 && field > 27 ? 27 + (field - 27) * 26 / 5 : field;
}

template <class T>
constexpr int field_of_bits(int order, int bits) {
    return sizeof(T) == 8 && order == 1 && bits > 27 ? 27 + ((bits - 27) * 5 + 25) / 26 : bits;
}

template <class T>
constexpr int width_of(int header) {
    return bits_of_field<T>(order_of(header), (header & 63) - fields[order_of(header) - 1]);
}

// Largest width of an order of differences.
template <class T>
constexpr int widest(int order) {
    return bits_of_field<T>(order, fields[order] - fields[order - 1] - 1);
}

// Bytes of a block before its planes.
template <class T>
constexpr std::size_t body_offset(int header) {
    return first_bytes<T>(header) * order_of(header);
}

// Bytes behind the headers for each header of a whole block; 0 for headers that no stream has, but for that of zeros.
template <class T>
struct Sizes {
    std::array<std::uint16_t, 256> of{};
    constexpr Sizes() {
        for (int header = 0; header < 256; ++header)
            of[header] = (header & 63) < 63 ? body_offset<T>(header) + width_of<T>(header) * block / 8 : 0;
        of[escaped] = block * sizeof(T);
    }
};
template <class T>
constexpr Sizes<T> sizes;

template <class T>
constexpr std::size_t longest_block = std::max(block * sizeof(T), sizeof(T) + widest<T>(1) * block / 8);

// ---- a block's integers

// False if a value is too large, not finite, or, if `measures`, too far from its grid point.
template <bool measures, class T>
KERNEL bool quantise(const T* x, const Grid& grid, Word<T>* q) {
    alignas(64) std::uint64_t moved[block];
    std::uint64_t inside = 1;
    for (std::size_t i = 0; i < block; ++i) {
        const double wide = x[i], scaled = wide * grid.inverse, up = scaled + whole;
        inside &= (std::fabs(scaled) <= grid.largest ? 1 : 0);
        if constexpr (measures) inside &= (std::fabs(wide - (up - whole) * grid.step) <= grid.bound ? 1 : 0);
        moved[i] = word_of(up);
    }
    for (std::size_t i = 0; i < block; ++i) q[i] = static_cast<Word<T>>(moved[i] - word_of(whole));
    return inside;
}

template <class W>
KERNEL W zigzag(W x) {
    return (x << 1) ^ (0 - (x >> (8 * sizeof(W) - 1)));
}

template <class W>
KERNEL W unzigzag(W x) {
    return (x >> 1) ^ (0 - (x & 1));
}

// By registers: `memset` of a few lines is slow.
template <int width, class W>
KERNEL void clear(W* x) {
    using R = Register<W, width>;
    for (std::size_t i = 0; i < block; i += R::lanes) R::store(typename R::Type{}, x + i);
}

// Integers become their differences, that of element 0 from `first`. If they are differences themselves, of an order,
// so many elements are 0, and become what `first` is before.
template <int width, int order, class W>
KERNEL void subtract_previous(W first, W* q) {
    using R = Register<W, width>;
    typename R::Type before = typename R::Type{} + first, x, moved;
    for (std::size_t i = 0; i < block; i += R::lanes) {
        R::load(q + i, x);
        if (order && i == 0) x += typename R::Type{first, order > 1 ? first : 0};  // late stores are loaded late
        R::template move_up<1>(before, x, moved);
        before = x;
        R::store(x - moved, q + i);
    }
}

// Undoes subtract_previous.
template <int width, int order, class W>
KERNEL void add_previous(W first, W* q) {
    using R = Register<W, width>;
    typename R::Type last = typename R::Type{} + first, x;
    for (std::size_t i = 0; i < block; i += R::lanes) {
        R::load(q + i, x);
        R::sum_up(x);
        x += last;
        last = typename R::Type{} + x[R::lanes - 1];
        if (order && i == 0) x -= typename R::Type{first, order > 1 ? first : 0};
        R::store(x, q + i);
    }
}

// ---- bit planes: byte j of one of b bits has the bits of elements j, j + 8 b, ...

template <int bits, int shift>
KERNEL std::uint8_t* pack_plane(const std::uint64_t* bytes, std::uint8_t* out) {
    constexpr std::uint64_t mask = 0x0101010101010101 * ((1 << bits) - 1);
    std::uint64_t plane[bits] = {};
    for (int part = 0; part < 8 / bits; ++part)
        for (int j = 0; j < bits; ++j) plane[j] |= (bytes[part * bits + j] >> shift & mask) << (part * bits);
    std::memcpy(out, plane, sizeof plane);
    return out + sizeof plane;
}

// Which of a plane's words each of a block's eight words of bytes is taken from, and how far down its bits go.
template <int bits>
struct Plane {
    std::uint64_t select[bits][8], down[8];
    constexpr Plane() : select{}, down{} {
        for (int word = 0; word < 8; ++word) {
            select[word % bits][word] = ~std::uint64_t{0};
            down[word] = word / bits * bits;
        }
    }
};
template <int bits>
alignas(64) constexpr Plane<bits> plane_words;

// Adds a plane to a register of words from `word` on. In registers: bytes stored one by one are loaded together late.
template <int width, int bits, int shift>
KERNEL const std::uint8_t* unpack_plane(const std::uint8_t* in, int word,
                                        typename Register<std::uint64_t, width>::Type& to) {
    using R = Register<std::uint64_t, width>;
    constexpr std::uint64_t mask = 0x0101010101010101 * ((1 << bits) - 1);
    typename R::Type words{}, select, down;
    for (int j = 0; j < bits; ++j) {
        std::uint64_t one;
        std::memcpy(&one, in + 8 * j, 8);
        R::load(plane_words<bits>.select[j] + word, select);
        words |= (typename R::Type{} + one) & select;
    }
    R::load(plane_words<bits>.down + word, down);
    to |= ((words >> down) & mask) << shift;
    return in + 8 * bits;
}

// One jump for the bits behind the whole bytes: f(integral_constant of their number), 1 to 7.
template <class F>
KERNEL void with_rest(int rest, F&& f) {
    switch (rest) {
        case 1: return f(std::integral_constant<int, 1>());
        case 2: return f(std::integral_constant<int, 2>());
        case 3: return f(std::integral_constant<int, 3>());
        case 4: return f(std::integral_constant<int, 4>());
        case 5: return f(std::integral_constant<int, 5>());
        case 6: return f(std::integral_constant<int, 6>());
        case 7: return f(std::integral_constant<int, 7>());
    }
}

template <class W>
KERNEL std::uint8_t* pack(const W* codes, int width, std::uint8_t* out) {
    int shift = 0;
    for (; shift + 8 <= width; shift += 8, out += block)
        for (std::size_t i = 0; i < block; ++i) out[i] = static_cast<std::uint8_t>(codes[i] >> shift);
    with_rest(width - shift, [&](auto rest) KERNEL_LAMBDA {
        alignas(64) std::uint8_t high[block];
        std::uint64_t bytes[block / 8];
        for (std::size_t i = 0; i < block; ++i) high[i] = static_cast<std::uint8_t>(codes[i] >> shift);
        std::memcpy(bytes, high, block);
        if constexpr (rest & 4) out = pack_plane<4, 0>(bytes, out);
        if constexpr (rest & 2) out = pack_plane<2, rest & 4>(bytes, out);
        if constexpr (rest & 1) out = pack_plane<1, rest & 6>(bytes, out);
    });
    return out;
}

template <int width, class W>
KERNEL void unpack(const std::uint8_t* in, int bits, W* codes) {
    using R = Register<std::uint64_t, width>;
    const int shift = bits & ~7;
    if (bits == shift) clear<width>(codes);
    with_rest(bits - shift, [&](auto rest) KERNEL_LAMBDA {
        alignas(64) std::uint64_t words[block / 8];
        alignas(64) std::uint8_t bytes[block];
        for (int word = 0; word < 8; word += R::lanes) {
            const std::uint8_t* plane = in + shift * (block / 8);
            typename R::Type all{};
            if constexpr (rest & 4) plane = unpack_plane<width, 4, 0>(plane, word, all);
            if constexpr (rest & 2) plane = unpack_plane<width, 2, rest & 4>(plane, word, all);
            if constexpr (rest & 1) plane = unpack_plane<width, 1, rest & 6>(plane, word, all);
            R::store(all, words + word);
        }
        std::memcpy(bytes, words, block);
        for (std::size_t i = 0; i < block; ++i) codes[i] = static_cast<W>(bytes[i]) << shift;
    });
    for (int byte = 0; byte < shift; byte += 8, in += block)
        for (std::size_t i = 0; i < block; ++i) codes[i] |= static_cast<W>(in[i]) << byte;
}

// ---- a block's header and bytes

// f(integral_constant of the first integer's bytes), unless there are none.
template <class T, class F>
KERNEL void with_first(int header, F&& f) {
    switch (header >> 6) {
        case 1: return f(std::integral_constant<std::size_t, sizeof(T) / 4>());
        case 2: return f(std::integral_constant<std::size_t, sizeof(T) / 2>());
        case 3: return f(std::integral_constant<std::size_t, sizeof(T)>());
    }
}

// Bits of the size of first integers, high bits of a header.
template <class T>
KERNEL int size_of(Word<T> first) {
    const int bits = first ? 64 - __builtin_clzll(first) : 0, quarter = 2 * sizeof(T);
    return ((bits > 0) + (bits > quarter) + (bits > 2 * quarter)) << 6;
}

template <class T>
KERNEL std::uint8_t* write_first(Word<T> first, int header, std::uint8_t* out) {
    with_first<T>(header, [&](auto bytes) KERNEL_LAMBDA { std::memcpy(out, &first, bytes); });
    return out + first_bytes<T>(header);
}

// Integers become their zigzag codes; returns the bits of the largest.
template <class W>
KERNEL int encode_zigzag(const W* from, W* to) {
    W all = 0;
    for (std::size_t i = 0; i < block; ++i) all |= to[i] = zigzag(from[i]);
    return all ? 64 - __builtin_clzll(all) : 0;
}

// Differences of an order, with the first integers of all orders up to it.
template <class T>
struct Differences {
    alignas(64) Word<T> of[block];
    Word<T> firsts[3];
    int order;

    // To an order higher.
    template <int width>
    KERNEL void raise() {
        const Word<T> first = firsts[order] = of[order];
        if (order == 0) subtract_previous<width, 0>(first, of);
        if (order == 1) subtract_previous<width, 1>(first, of);
        if (order == 2) subtract_previous<width, 2>(first, of);
        ++order;
    }

    // To the one below.
    template <int width>
    KERNEL void lower() {
        --order;
        if (order == 0) add_previous<width, 0>(firsts[0], of);
        if (order == 1) add_previous<width, 1>(firsts[1], of);
        if (order == 2) add_previous<width, 2>(firsts[2], of);
    }
};

// The header of a block that has codes of so many bits.
template <class T>
KERNEL int header_of(const Word<T>* firsts, int order, int bits) {
    Word<T> all = 0;
    for (int k = 0; k < order; ++k) all |= zigzag(firsts[k]);
    return size_of<T>(all) | (fields[order - 1] + field_of_bits<T>(order, bits));
}

template <class T>
KERNEL std::uint8_t* write(const Word<T>* firsts, const Word<T>* codes, int header, std::uint8_t* out) {
    for (int k = 0; k < order_of(header); ++k) out = write_first<T>(zigzag(firsts[k]), header, out);
    return pack(codes, width_of<T>(header), out);
}

// Writes a block of integers as differences of the order that makes it short; overwrites them.
template <int width, class T>
KERNEL std::uint8_t* write_shortest(Differences<T>& q, std::uint8_t* header, std::uint8_t* out) {
    alignas(64) Word<T> codes[2][block];
    q.template raise<width>();
    int bits = encode_zigzag(q.of, codes[0]), best = header_of<T>(q.firsts, 1, bits), chosen = 0;
    for (int order = 2; order <= 3 && bits > (order == 2 ? 0 : shortest); ++order) {
        q.template raise<width>();
        bits = encode_zigzag(q.of, codes[!chosen]);
        if (bits > widest<T>(order)) break;
        const int other = header_of<T>(q.firsts, order, bits);
        if (sizes<T>.of[other] >= sizes<T>.of[best]) break;
        best = other;
        chosen = !chosen;
    }
    *header = static_cast<std::uint8_t>(best);
    return write<T>(q.firsts, codes[chosen], best, out);
}

// Writes a block as differences of its order, or of the next lower one that they fit; returns its end, or nullptr if
// there is none.
template <int width, class T>
KERNEL std::uint8_t* write_fitting(Differences<T>& q, std::uint8_t* header, std::uint8_t* out) {
    alignas(64) Word<T> codes[block];
    int bits;
    while ((bits = encode_zigzag(q.of, codes)) > widest<T>(q.order)) {
        if (q.order == 1) return nullptr;
        q.template lower<width>();
    }
    const int head = header_of<T>(q.firsts, q.order, bits);
    *header = static_cast<std::uint8_t>(head);
    return write<T>(q.firsts, codes, head, out);
}

template <class T>
KERNEL Word<T> read_first(std::uint8_t header, const std::uint8_t* in) {
    Word<T> first = 0;
    with_first<T>(header, [&](auto bytes) KERNEL_LAMBDA {
        std::conditional_t<bytes == 1, std::uint8_t, std::conditional_t<bytes == 2, std::uint16_t,
                           std::conditional_t<bytes == 4, std::uint32_t, std::uint64_t>>> stored;
        std::memcpy(&stored, in, bytes);
        first = static_cast<Word<T>>(stored);
    });
    return unzigzag(first);
}

// A block's codes, without their zigzag form.
template <int width, class T>
KERNEL void read(std::uint8_t header, const std::uint8_t* in, Differences<T>& q) {
    q.order = order_of(header);
    for (int k = 0; k < q.order; ++k) q.firsts[k] = read_first<T>(header, in + k * first_bytes<T>(header));
    unpack<width>(in + body_offset<T>(header), width_of<T>(header), q.of);
    for (std::size_t i = 0; i < block; ++i) q.of[i] = unzigzag(q.of[i]);
}

template <int width, class T>
KERNEL void read_integers(std::uint8_t header, const std::uint8_t* in, Differences<T>& q) {
    read<width>(header, in, q);
    while (q.order) q.template lower<width>();
}

// A block's values in float64.
template <int width, class T>
KERNEL void read_values(std::uint8_t header, const std::uint8_t* in, std::size_t n, double step, double* values) {
    if (header == escaped) {
        alignas(64) T plain[block] = {};
        std::memcpy(plain, in, n * sizeof(T));
        for (std::size_t i = 0; i < block; ++i) values[i] = plain[i];
        return;
    }
    Differences<T> q;
    read_integers<width>(header, in, q);
    for (std::size_t i = 0; i < block; ++i) values[i] = grid_integer<T>(q.of[i]) * step;
}

}  // namespace bounded
