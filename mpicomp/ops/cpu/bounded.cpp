// Error-bounded codes: integers on a grid in blocks of 64, their differences in bit planes; see oracle/bounded.py.
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "arrays.h"
#include "bind.h"
#include "isa.h"

namespace {

constexpr std::size_t block = 64;
constexpr std::uint8_t escaped = 0xFF;
constexpr double whole = 6755399441055744;  // 1.5 * 2^52: x + whole has x, rounded, in its low bits

template <class T>
struct Type;
template <>
struct Type<float> { using Word = std::uint32_t; using Signed = std::int32_t; static constexpr int widest = 32; };
template <>
struct Type<double> { using Word = std::uint64_t; using Signed = std::int64_t; static constexpr int widest = 53; };
template <class T>
using Word = typename Type<T>::Word;
template <class T>
using Signed = typename Type<T>::Signed;

struct Grid {
    double bound, step, inverse, largest;
};

struct Written {
    std::size_t bytes = 0, escaped = 0;
    bool fits = true;
};

KERNEL std::uint64_t bits_of(double x) {
    std::uint64_t bits;
    std::memcpy(&bits, &x, 8);
    return bits;
}

template <class T>
KERNEL double real_of(Word<T> q) {
    if constexpr (sizeof(T) == 4) {
        return static_cast<std::int32_t>(q);
    } else {  // below 2^51 in magnitude
        const std::uint64_t bits = q + bits_of(whole);
        double x;
        std::memcpy(&x, &bits, 8);
        return x - whole;
    }
}

template <class T>
constexpr std::size_t first_bytes(int header) {
    return header >> 6 ? sizeof(T) >> (3 - (header >> 6)) : 0;
}

// Bytes behind the headers for each header of a whole block; 0 for headers that no stream has, but for that of zeros.
template <class T>
struct Sizes {
    std::array<std::uint16_t, 256> of{};
    constexpr Sizes() {
        for (int header = 0; header < 256; ++header)
            of[header] = (header & 63) <= Type<T>::widest ? first_bytes<T>(header) + (header & 63) * block / 8 : 0;
        of[escaped] = block * sizeof(T);
    }
};
template <class T>
constexpr Sizes<T> sizes;

// ---- a block's integers

// False if a value is too large, not finite, or too far from its grid point.
template <class T>
KERNEL bool quantise(const T* x, const Grid& grid, Word<T>* q) {
    Word<T> outside = 0;
    for (std::size_t i = 0; i < block; ++i) {
        const double wide = x[i], scaled = wide * grid.inverse, moved = scaled + whole;
        outside |= !(std::fabs(scaled) <= grid.largest);
        outside |= !(std::fabs(wide - (moved - whole) * grid.step) <= grid.bound);
        q[i] = static_cast<Word<T>>(bits_of(moved) - bits_of(whole));
    }
    return !outside;
}

template <class W>
KERNEL W zigzag(W x) {
    return (x << 1) ^ (0 - (x >> (8 * sizeof(W) - 1)));
}

template <class W>
KERNEL W unzigzag(W x) {
    return (x >> 1) ^ (0 - (x & 1));
}

// ---- bit planes: byte j of one of b bits has the bits of elements j, j + 8 b, ...

template <int bits>
KERNEL std::uint8_t* pack_plane(const std::uint64_t* bytes, int shift, std::uint8_t* out) {
    constexpr std::uint64_t mask = 0x0101010101010101 * ((1 << bits) - 1);
    std::uint64_t plane[bits] = {};
    for (int part = 0; part < 8 / bits; ++part)
        for (int j = 0; j < bits; ++j) plane[j] |= (bytes[part * bits + j] >> shift & mask) << (part * bits);
    std::memcpy(out, plane, sizeof plane);
    return out + sizeof plane;
}

template <int bits>
KERNEL const std::uint8_t* unpack_plane(const std::uint8_t* in, int shift, std::uint64_t* bytes) {
    constexpr std::uint64_t mask = 0x0101010101010101 * ((1 << bits) - 1);
    std::uint64_t plane[bits];
    std::memcpy(plane, in, sizeof plane);
    for (int part = 0; part < 8 / bits; ++part)
        for (int j = 0; j < bits; ++j) bytes[part * bits + j] |= (plane[j] >> (part * bits) & mask) << shift;
    return in + sizeof plane;
}

template <class W>
KERNEL std::uint8_t* pack(const W* codes, int width, std::uint8_t* out) {
    int shift = 0;
    for (; shift + 8 <= width; shift += 8, out += block)
        for (std::size_t i = 0; i < block; ++i) out[i] = static_cast<std::uint8_t>(codes[i] >> shift);
    if (shift == width) return out;
    alignas(64) std::uint8_t rest[block];
    std::uint64_t bytes[block / 8];
    for (std::size_t i = 0; i < block; ++i) rest[i] = static_cast<std::uint8_t>(codes[i] >> shift);
    std::memcpy(bytes, rest, block);
    if (width & 4) out = pack_plane<4>(bytes, 0, out);
    if (width & 2) out = pack_plane<2>(bytes, width & 4, out);
    if (width & 1) out = pack_plane<1>(bytes, width & 6, out);
    return out;
}

template <class W>
KERNEL void unpack(const std::uint8_t* in, int width, W* codes) {
    std::memset(codes, 0, block * sizeof(W));
    int shift = 0;
    for (; shift + 8 <= width; shift += 8, in += block)
        for (std::size_t i = 0; i < block; ++i) codes[i] |= static_cast<W>(in[i]) << shift;
    if (shift == width) return;
    alignas(64) std::uint8_t rest[block];
    std::uint64_t bytes[block / 8] = {};
    if (width & 4) in = unpack_plane<4>(in, 0, bytes);
    if (width & 2) in = unpack_plane<2>(in, width & 4, bytes);
    if (width & 1) in = unpack_plane<1>(in, width & 6, bytes);
    std::memcpy(rest, bytes, block);
    for (std::size_t i = 0; i < block; ++i) codes[i] |= static_cast<W>(rest[i]) << shift;
}

// ---- a block's header and bytes

// Writes a block; returns its end, or nullptr if its differences are too wide.
template <class T>
KERNEL std::uint8_t* write(Word<T> first, const Word<T>* codes, std::uint8_t* header, std::uint8_t* out) {
    Word<T> all = 0;
    for (std::size_t i = 0; i < block; ++i) all |= codes[i];
    const int width = all ? 64 - __builtin_clzll(all) : 0;
    if (width > Type<T>::widest) return nullptr;
    const int bits = first ? 64 - __builtin_clzll(first) : 0, quarter = 2 * sizeof(T);
    const int size = (bits > 0) + (bits > quarter) + (bits > 2 * quarter);
    *header = static_cast<std::uint8_t>(width | size << 6);
    std::memcpy(out, &first, first_bytes<T>(*header));
    return pack(codes, width, out + first_bytes<T>(*header));
}

template <class T>
KERNEL Word<T> read_first(std::uint8_t header, const std::uint8_t* in) {
    Word<T> first = 0;
    std::memcpy(&first, in, first_bytes<T>(header));
    return unzigzag(first);
}

// The values of a block, times divisor.
template <class T>
KERNEL void read_values(std::uint8_t header, const std::uint8_t* in, std::size_t n, double step, double* values) {
    if (header == escaped) {
        alignas(64) T plain[block] = {};
        std::memcpy(plain, in, n * sizeof(T));
        for (std::size_t i = 0; i < block; ++i) values[i] = plain[i];
        return;
    }
    alignas(64) Word<T> q[block];
    unpack(in + first_bytes<T>(header), header & 63, q);
    Word<T> last = read_first<T>(header, in);
    for (std::size_t i = 0; i < block; ++i) q[i] = last += unzigzag(q[i]);
    for (std::size_t i = 0; i < block; ++i) values[i] = real_of<T>(q[i]) * step;
}

// ---- streams

// Whether `nbytes` are exactly those of a stream.
template <class T>
KERNEL bool is_stream(const std::uint8_t* codes, std::size_t nbytes, std::size_t n) {
    const std::size_t count = (n + block - 1) / block;
    if (nbytes < count) return false;
    std::size_t total = count;
    bool known = true;
    for (std::size_t b = 0; b < count; ++b) {
        total += sizes<T>.of[codes[b]];
        known &= (codes[b] & 63) <= Type<T>::widest || codes[b] == escaped;
    }
    if (count && codes[count - 1] == escaped) total -= (count * block - n) * sizeof(T);
    return known && total == nbytes;
}

template <class T>
KERNEL Written encode(const T* x, std::size_t n, const Grid* grid, std::uint8_t* codes) {
    Written written;
    std::uint8_t* out = codes + (n + block - 1) / block;
    alignas(64) T last[block];
    alignas(64) Word<T> q[block], differences[block];
    for (std::size_t begin = 0; begin < n; begin += block) {
        const std::size_t length = std::min(block, n - begin);
        const T* values = x + begin;
        if (length < block) {
            std::memcpy(last, values, length * sizeof(T));
            std::fill(last + length, last + block, last[length - 1]);
            values = last;
        }
        std::uint8_t* header = codes + begin / block;
        if (quantise(values, *grid, q)) {
            differences[0] = 0;
            for (std::size_t i = 1; i < block; ++i) differences[i] = zigzag<Word<T>>(q[i] - q[i - 1]);
            out = write<T>(zigzag(q[0]), differences, header, out);
        } else {
            *header = escaped;
            std::memcpy(out, values, length * sizeof(T));
            out += length * sizeof(T);
            ++written.escaped;
        }
    }
    written.bytes = out - codes;
    return written;
}

template <class T>
KERNEL void add_values(const std::uint8_t* headers, const std::uint8_t* const* from, std::size_t count, std::size_t n,
                       double step, std::uint8_t* out) {
    alignas(64) double total[block], more[block];
    alignas(64) T rounded[block];
    read_values<T>(headers[0], from[0], n, step, total);
    for (std::size_t s = 1; s < count; ++s) {
        read_values<T>(headers[s], from[s], n, step, more);
        for (std::size_t i = 0; i < block; ++i) total[i] += more[i];
    }
    for (std::size_t i = 0; i < block; ++i) rounded[i] = static_cast<T>(total[i]);
    std::memcpy(out, rounded, n * sizeof(T));
}

// Adds a block's differences to the sums; returns its first integer.
template <class T>
KERNEL Word<T> add_differences(std::uint8_t header, const std::uint8_t* in, Word<T>* sums) {
    alignas(64) Word<T> codes[block];
    if (header & 63) {
        unpack(in + first_bytes<T>(header), header & 63, codes);
        for (std::size_t i = 0; i < block; ++i) sums[i] += unzigzag(codes[i]);
    }
    return read_first<T>(header, in);
}

template <class T>
KERNEL Written sum(const std::uint8_t* const* streams, std::size_t count, std::size_t n, double step,
                   std::uint8_t* codes) {
    Written written;
    const std::size_t blocks = (n + block - 1) / block;
    std::uint8_t* out = codes + blocks;
    std::vector<const std::uint8_t*> from(count);
    std::vector<std::uint8_t> headers(count);
    for (std::size_t s = 0; s < count; ++s) from[s] = streams[s] + blocks;
    alignas(64) Word<T> sums[block];
    for (std::size_t b = 0; b < blocks; ++b) {
        bool plain = false;
        const std::size_t length = std::min(block, n - b * block);
        for (std::size_t s = 0; s < count; ++s) plain |= (headers[s] = streams[s][b]) == escaped;
        if (plain) {
            codes[b] = escaped;
            add_values<T>(headers.data(), from.data(), count, length, step, out);
            out += length * sizeof(T);
            ++written.escaped;
        } else {
            std::memset(sums, 0, sizeof sums);
            Word<T> first = 0;
            for (std::size_t s = 0; s < count; ++s) first += add_differences<T>(headers[s], from[s], sums);
            for (std::size_t i = 0; i < block; ++i) sums[i] = zigzag(sums[i]);
            out = write<T>(zigzag(first), sums, codes + b, out);
            if (!out) return {0, 0, false};
        }
        for (std::size_t s = 0; s < count; ++s) from[s] += sizes<T>.of[headers[s]];
    }
    written.bytes = out - codes;
    return written;
}

template <class T>
KERNEL void decode(const std::uint8_t* codes, std::size_t n, double step, double divisor, T* out) {
    const std::uint8_t* in = codes + (n + block - 1) / block;
    alignas(64) double values[block];
    alignas(64) T rounded[block];
    for (std::size_t begin = 0; begin < n; begin += block) {
        const std::size_t length = std::min(block, n - begin);
        const std::uint8_t header = codes[begin / block];
        read_values<T>(header, in, length, step, values);
        if (divisor != 1)
            for (std::size_t i = 0; i < block; ++i) values[i] /= divisor;
        T* to = length == block ? out + begin : rounded;
        for (std::size_t i = 0; i < block; ++i) to[i] = static_cast<T>(values[i]);
        if (length < block) std::memcpy(out + begin, rounded, length * sizeof(T));
        in += sizes<T>.of[header];
    }
}

}  // namespace

void bind_bounded(py::module_& m) {
    m.def("encode_on_grid", [](const py::array& x, double bound, double step, double inverse, std::int64_t largest,
                               py::array codes) {
        Written written;
        visit_real(x, "x", [&](auto zero) {
            using T = decltype(zero);
            const auto from = input<T>(x, "x");
            const auto to = output<std::uint8_t>(codes, "codes");
            const Grid grid{bound, step, inverse, static_cast<double>(largest)};
            py::gil_scoped_release release;
            written = dispatch<encode<T>>(from.data, from.n, &grid, to.data);
        });
        return py::make_tuple(written.bytes, written.escaped);
    }, py::arg("x"), py::arg("bound"), py::arg("step"), py::arg("inverse"), py::arg("largest"), py::arg("codes"),
       "Write the stream of x to codes, which has room; returns its bytes and the number of escaped blocks.");

    m.def("sum_on_grid", [](const std::vector<py::array>& streams, std::int64_t n, bool wide, double step,
                            py::array codes) {
        Written written;
        const auto run = [&](auto zero) {
            using T = decltype(zero);
            std::vector<const std::uint8_t*> from;
            bool valid = true;
            for (const auto& stream : streams) {
                const auto view = input<std::uint8_t>(stream, "streams");
                valid &= dispatch<is_stream<T>>(view.data, view.n, static_cast<std::size_t>(n));
                from.push_back(view.data);
            }
            const auto to = output<std::uint8_t>(codes, "codes");
            py::gil_scoped_release release;
            if (valid)
                written = dispatch<sum<T>>(from.data(), from.size(), static_cast<std::size_t>(n), step, to.data);
            return valid;
        };
        const bool valid = wide ? run(double{}) : run(float{});
        return py::make_tuple(valid, written.fits, written.bytes, written.escaped);
    }, py::arg("streams"), py::arg("n"), py::arg("wide"), py::arg("step"), py::arg("codes"),
       "Write the sum of streams to codes, which has room; returns whether they are valid and the sum fits, its bytes "
       "and the number of escaped blocks.");

    m.def("decode_on_grid", [](const py::array& codes, double step, double divisor, py::array out) {
        bool valid = false;
        visit_real(out, "out", [&](auto zero) {
            using T = decltype(zero);
            const auto to = output<T>(out, "out");
            const auto from = input<std::uint8_t>(codes, "codes");
            py::gil_scoped_release release;
            valid = dispatch<is_stream<T>>(from.data, from.n, to.n);
            if (valid) dispatch<decode<T>>(from.data, to.n, step, divisor, to.data);
        });
        return valid;
    }, py::arg("codes"), py::arg("step"), py::arg("divisor"), py::arg("out"),
       "out = the stream's values / divisor; returns whether codes are exactly a stream.");
}
