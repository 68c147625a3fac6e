// Blocks of error-bounded codes: 128 integers on a grid, their differences in bit planes; see oracle/bounded.py.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "isa.h"
#include "lanes.h"

namespace bounded {

constexpr int group = 32, groups = 4, orders = 3;
constexpr std::size_t block = group * groups;
using Header = std::uint32_t;
constexpr Header escaped = 0xFFFFFFFF;
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

// ---- headers

constexpr int order_of(Header header) { return 1 + (header & 3); }
constexpr unsigned begun_in(Header header) { return (header >> 4 & 7) << 1 | 1; }  // a bit per group
constexpr int width_of(Header header, int number) { return header >> (7 + 6 * number) & 63; }
constexpr bool is_constant(Header header) { return (header & ~12u) == 0; }

template <class T>
constexpr std::size_t first_bytes(Header header) {
    const int size = header >> 2 & 3;
    return size ? sizeof(T) >> (3 - size) : 0;
}

// Bytes of a block before its codes.
template <class T>
constexpr std::size_t body_offset(Header header) {
    const Header begun = header >> 4;
    return first_bytes<T>(header) * order_of(header) * (1 + (begun & 1) + (begun >> 1 & 1) + (begun >> 2 & 1));
}

// Bytes of a whole block.
template <class T>
constexpr std::size_t body_bytes(Header header) {
    if (header == escaped) return block * sizeof(T);
    std::size_t bits = 0;
    for (int number = 0; number < groups; ++number) bits += width_of(header, number);
    return body_offset<T>(header) + bits * (group / 8);
}

template <class T>
constexpr int widest = sizeof(T) == 4 ? 32 : 55;

template <class T>
constexpr std::size_t longest_block = std::max(block * sizeof(T), widest<T> * block / 8 + groups * orders * sizeof(T));

// Whether a stream may have the header.
template <class T>
KERNEL bool is_header(Header header) {
    bool known = (header & 3) < orders && header >> 31 == 0;
    for (int number = 0; number < groups; ++number) known &= width_of(header, number) <= widest<T>;
    return known || header == escaped;
}

KERNEL Header header_at(const std::uint8_t* codes, std::size_t number) {
    Header header;
    std::memcpy(&header, codes + number * sizeof header, sizeof header);
    return header;
}

KERNEL void put_header(Header header, std::uint8_t* codes, std::size_t number) {
    std::memcpy(codes + number * sizeof header, &header, sizeof header);
}

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

// ---- differences

// Four lanes at least, so that the first codes of a group are in one register.
template <class W, int width>
using Lanes = Register<W, std::max<int>(width, 4 * sizeof(W))>;

// All ones in the lanes from `first` on.
template <class W, int width>
KERNEL void lanes_from(int first, typename Lanes<W, width>::Type& to) {
    using R = Lanes<W, width>;
    alignas(64) W lanes[R::lanes];
    for (int i = 0; i < static_cast<int>(R::lanes); ++i) lanes[i] = i < first ? 0 : ~W{0};
    R::load(lanes, to);
}

template <class W, int width, std::size_t by = Lanes<W, width>::lanes / 2>
KERNEL W any_lane(typename Lanes<W, width>::Type& x) {
    if constexpr (by > 0) {
        typename Lanes<W, width>::Type moved;
        Lanes<W, width>::template move_up<by>(x, x, moved);
        x |= moved;
        return any_lane<W, width, by / 2>(x);
    } else {
        return x[0];
    }
}

KERNEL int bits_of_word(std::uint64_t x) {
    return x ? 64 - __builtin_clzll(x) : 0;
}

// A block's differences of each order, of which the first are 0; the bits of groups without the first codes of each.
template <class T>
struct Differences {
    alignas(64) Word<T> of[orders][block];
    int narrow[orders][groups];

    template <int width>
    KERNEL void take(const Word<T>* q) {
        using W = Word<T>;
        using R = Lanes<W, width>;
        typename R::Type before[orders] = {}, behind[orders], all[orders], x, moved;
        for (int k = 0; k < orders; ++k) lanes_from<W, width>(k + 1, behind[k]);
        for (int number = 0; number < groups; ++number) {
            for (int k = 0; k < orders; ++k) all[k] = typename R::Type{};
            for (std::size_t i = 0; i < group; i += R::lanes) {
                R::load(q + number * group + i, x);
                for (int k = 0; k < orders; ++k) {
                    R::template move_up<1>(before[k], x, moved);
                    before[k] = x;
                    x -= moved;
                    typename R::Type codes = x;
                    if (i == 0) codes &= behind[k];
                    R::store(number ? x : codes, of[k] + number * group + i);
                    all[k] |= (codes << 1) ^ typename R::Type((typename R::Mask)codes >> (8 * sizeof(W) - 1));
                }
            }
            for (int k = 0; k < orders; ++k) narrow[k][number] = bits_of_word(any_lane<W, width>(all[k]));
        }
    }
};

// The first numbers of groups that begin anew.
template <class T>
struct Firsts {
    Word<T> of[groups][orders] = {};

    KERNEL void take(const Word<T>* q) {
        for (int number = 0; number < groups; ++number) {
            const Word<T>* x = q + number * group;
            of[number][0] = x[0];
            of[number][1] = x[1] - x[0];
            of[number][2] = x[2] - 2 * x[1] + x[0];
        }
    }
};

// All lanes become the last one.
template <class R, int... lane>
KERNEL void spread_last(const typename R::Type& x, typename R::Type& to, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
    to = __builtin_shufflevector(x, x, (lane * 0 + static_cast<int>(R::lanes) - 1)...);
#else
    to = __builtin_shuffle(x, typename R::Mask{(lane * 0 + static_cast<int>(R::lanes) - 1)...});
#endif
}
template <class R>
KERNEL void spread_last(const typename R::Type& x, typename R::Type& to) {
    spread_last<R>(x, to, std::make_integer_sequence<int, static_cast<int>(R::lanes)>{});
}

// Codes become the integers that they are differences of.
template <int width, int order, class T>
KERNEL void sum_up(unsigned begun, const Firsts<T>& firsts, Word<T>* q) {
    using R = Lanes<Word<T>, width>;
    typename R::Type last[order] = {}, x, end;
    for (int number = 0; number < groups; ++number) {
        const bool anew = begun >> number & 1;
        if (anew)
            for (int k = 0; k < order; ++k) last[k] = typename R::Type{} + firsts.of[number][k];
        for (std::size_t i = 0; i < group; i += R::lanes) {
            R::load(q + number * group + i, x);
            for (int k = order; k-- > 0;) {
                R::sum_up(x);
                spread_last<R>(x, end);
                x += last[k];
                last[k] += end;  // the next register waits for this sum alone
                const Word<T> first = firsts.of[number][k];
                if (k && i == 0 && anew) x -= typename R::Type{first, k > 1 ? first : 0};
            }
            R::store(x, q + number * group + i);
        }
    }
}

// ---- bit planes: a word for each bit of a group, element i's in bit i

using Words = Register<std::uint32_t, 32>;
constexpr std::size_t beyond = sizeof(Words::Type) - 4;  // bytes behind planes that are read or written with them

// Swaps a bit of each lane's number with that of the numbers of the bits in a byte.
template <int by, int... lane>
KERNEL void swap_bits(Words::Type& x, std::integer_sequence<int, lane...>) {
    constexpr std::uint32_t low = by == 1 ? 0x55555555 : by == 2 ? 0x33333333 : 0x0F0F0F0F;
    const Words::Type up = {(lane & by ? 0 : ~low)...}, down = {(lane & by ? low : 0)...};
#if defined(__clang__)
    const Words::Type other = __builtin_shufflevector(x, x, (lane ^ by)...);
#else
    const Words::Type other = __builtin_shuffle(x, Words::Mask{(lane ^ by)...});
#endif
    x = (x & ~(up | down)) | (other << by & up) | (other >> by & down);
}

// Bit b of byte k of lane l becomes bit l of byte k of lane b.
KERNEL void transpose(Words::Type& x) {
    constexpr std::make_integer_sequence<int, 8> lanes;
    swap_bits<1>(x, lanes);
    swap_bits<2>(x, lanes);
    swap_bits<4>(x, lanes);
}

template <class W>
KERNEL std::uint8_t* pack(const W* codes, int bits, std::uint8_t* out) {
    using R = Register<W, 8 * sizeof(W)>;
    for (int shift = 0; shift < bits; shift += 8) {
        Words::Type planes{};
        for (int byte = 0; byte < 4; ++byte) {
            typename R::Type x;
            R::load(codes + 8 * byte, x);
            planes |= __builtin_convertvector(x >> shift & 0xFF, Words::Type) << (8 * byte);
        }
        transpose(planes);
        std::memcpy(out, &planes, sizeof planes);
        out += 4 * std::min(8, bits - shift);
    }
    return out;
}

// Adds a group's codes.
template <class W>
KERNEL void unpack(const std::uint8_t* in, int bits, W* codes) {
    using R = Register<W, 8 * sizeof(W)>;
    for (int shift = 0; shift < bits; shift += 8) {
        const int count = std::min(8, bits - shift);
        Words::Type planes;
        std::memcpy(&planes, in, sizeof planes);
        transpose(planes);
        for (int byte = 0; byte < 4; ++byte) {
            typename R::Type x;
            R::load(codes + 8 * byte, x);
            if (shift + 8 < bits) {
                x += __builtin_convertvector(planes >> (8 * byte) & 0xFF, typename R::Type) << shift;
            } else {  // with the sign
                const Words::Mask high = (Words::Mask)(planes << (32 - 8 * byte - count)) >> (32 - count);
                x += (typename R::Type)__builtin_convertvector(high, typename R::Mask) << shift;
            }
            R::store(x, codes + 8 * byte);
        }
        in += 4 * count;
    }
}

// ---- a block's header and bytes

// f(integral_constant of the bytes of first numbers), unless there are none.
template <class T, class F>
KERNEL void with_first(Header header, F&& f) {
    switch (header >> 2 & 3) {
        case 1: return f(std::integral_constant<std::size_t, sizeof(T) / 4>());
        case 2: return f(std::integral_constant<std::size_t, sizeof(T) / 2>());
        case 3: return f(std::integral_constant<std::size_t, sizeof(T)>());
    }
}

// Calls f(group, order) for the first numbers in the order of the stream.
template <class F>
KERNEL void each_first(unsigned begun, int order, F&& f) {
    for (int number = 0; number < groups; ++number) {
        if (!(begun >> number & 1)) continue;
        for (int k = 0; k < orders; ++k)
            if (k < order) f(number, k);
    }
}

// Writes a block of codes that begin with zeros where they begin anew; returns its end.
template <class T>
KERNEL std::uint8_t* write(int order, unsigned begun, const Firsts<T>& firsts, const int* widths, const Word<T>* codes,
                           std::uint8_t* headers, std::size_t number, std::uint8_t* out) {
    Word<T> all = 0;
    each_first(begun, order, [&](int g, int k) KERNEL_LAMBDA { all |= zigzag(firsts.of[g][k]); });
    const int bits = bits_of_word(all), quarter = 2 * sizeof(T);
    const Header size = (bits > 0) + (bits > quarter) + (bits > 2 * quarter);
    Header header = (order - 1) | size << 2 | (begun >> 1) << 4;
    for (int g = 0; g < groups; ++g) header |= static_cast<Header>(widths[g]) << (7 + 6 * g);
    put_header(header, headers, number);
    with_first<T>(header, [&](auto bytes) KERNEL_LAMBDA {
        each_first(begun, order, [&](int g, int k) KERNEL_LAMBDA {
            const Word<T> first = zigzag(firsts.of[g][k]);
            std::memcpy(out, &first, bytes);
            out += bytes;
        });
    });
    for (int g = 0; g < groups; ++g) out = pack(codes + g * group, widths[g], out);
    return out;
}

// Codes of an order, that begin anew where `begun` says so, of the differences of a block.
template <class T>
KERNEL Word<T>* begin_anew(Differences<T>& differences, int order, unsigned begun) {
    Word<T>* codes = differences.of[order - 1];
    for (int g = 1; g < groups; ++g)
        if (begun >> g & 1)
            for (int k = 0; k < order; ++k) codes[g * group + k] = 0;
    return codes;
}

// Bits of the first codes of a group.
template <class T>
KERNEL int bits_of_head(const Word<T>* codes, int order) {
    Word<T> all = 0;
    for (int k = 0; k < orders; ++k) all |= k < order ? zigzag(codes[k]) : 0;
    return bits_of_word(all);
}

// Writes a block of integers as differences of the order that makes it short.
template <int width, class T>
KERNEL std::uint8_t* write_shortest(const Word<T>* q, std::uint8_t* headers, std::size_t number, std::uint8_t* out) {
    constexpr int cost = sizeof(T) / 2;
    Differences<T> differences;
    differences.template take<width>(q);
    int order = 0, least = 0;
    for (int k = 1; k <= orders; ++k) {
        int total = k * cost;
        for (int g = 0; g < groups; ++g) total += 4 * differences.narrow[k - 1][g];
        if (k == 1 || total < least) {
            least = total;
            order = k;
        }
    }
    unsigned begun = 1;
    int* widths = differences.narrow[order - 1];
    for (int g = 1; g < groups; ++g) {
        const int all = std::max(widths[g], bits_of_head<T>(differences.of[order - 1] + g * group, order));
        if (4 * (all - widths[g]) > order * cost)
            begun |= 1u << g;
        else
            widths[g] = all;
    }
    Firsts<T> firsts;
    firsts.take(q);
    return write<T>(order, begun, firsts, widths, begin_anew(differences, order, begun), headers, number, out);
}

// Writes codes; returns their end, or nullptr if they are too wide.
template <int width, class T>
KERNEL std::uint8_t* write_fitting(int order, unsigned begun, const Firsts<T>& firsts, const Word<T>* codes,
                                   std::uint8_t* headers, std::size_t number, std::uint8_t* out) {
    using R = Lanes<Word<T>, width>;
    int widths[groups], most = 0;
    for (int g = 0; g < groups; ++g) {
        typename R::Type all{}, x;
        for (std::size_t i = 0; i < group; i += R::lanes) {
            R::load(codes + g * group + i, x);
            all |= (x << 1) ^ typename R::Type((typename R::Mask)x >> (8 * sizeof(T) - 1));
        }
        widths[g] = bits_of_word(any_lane<Word<T>, width>(all));
        most = std::max(most, widths[g]);
    }
    return most > widest<T> ? nullptr : write<T>(order, begun, firsts, widths, codes, headers, number, out);
}

// A block's bytes in a stream, and the end of that.
struct Body {
    const std::uint8_t *at, *end;
};

// Adds a block's first numbers.
template <class T>
KERNEL void add_firsts(Header header, Body body, Firsts<T>& firsts) {
    with_first<T>(header, [&](auto bytes) KERNEL_LAMBDA {
        each_first(begun_in(header), order_of(header), [&](int g, int k) KERNEL_LAMBDA {
            std::conditional_t<bytes == 1, std::uint8_t, std::conditional_t<bytes == 2, std::uint16_t,
                               std::conditional_t<bytes == 4, std::uint32_t, std::uint64_t>>> stored;
            std::memcpy(&stored, body.at, bytes);
            firsts.of[g][k] += unzigzag(static_cast<Word<T>>(stored));
            body.at += bytes;
        });
    });
}

// Adds a block's codes.
template <class T>
KERNEL void add_codes(Header header, Body body, Word<T>* codes) {
    std::uint8_t copy[longest_block<T> + beyond];
    const std::uint8_t* in = body.at + body_offset<T>(header);
    if (body.end - body.at < static_cast<std::ptrdiff_t>(body_bytes<T>(header) + beyond)) {
        std::memcpy(copy, body.at, body_bytes<T>(header));
        in = copy + body_offset<T>(header);
    }
    for (int g = 0; g < groups; ++g) {
        const int bits = width_of(header, g);
        unpack(in, bits, codes + g * group);
        in += bits * (group / 8);
    }
}

template <int width, class T>
KERNEL void read_integers(Header header, Body body, Word<T>* q) {
    Firsts<T> firsts;
    clear<width>(q);
    add_firsts(header, body, firsts);
    add_codes<T>(header, body, q);
    switch (order_of(header)) {
        case 1: return sum_up<width, 1>(begun_in(header), firsts, q);
        case 2: return sum_up<width, 2>(begun_in(header), firsts, q);
        case 3: return sum_up<width, 3>(begun_in(header), firsts, q);
    }
}

// A block's values in float64.
template <int width, class T>
KERNEL void read_values(Header header, Body body, std::size_t n, double step, double* values) {
    if (header == escaped) {
        alignas(64) T plain[block] = {};
        std::memcpy(plain, body.at, n * sizeof(T));
        for (std::size_t i = 0; i < block; ++i) values[i] = plain[i];
        return;
    }
    alignas(64) Word<T> q[block];
    read_integers<width, T>(header, body, q);
    for (std::size_t i = 0; i < block; ++i) values[i] = grid_integer<T>(q[i]) * step;
}

}  // namespace bounded
