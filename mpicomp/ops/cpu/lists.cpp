// Ascending index lists: what two have in common, and how they are written in few bytes.
#include <algorithm>
#include <cstring>

#include "bind.h"
#include "collect.h"
#include "indices.h"
#include "set_bits.h"

namespace {

// ---- what two lists have in common

using Places = Buffer<std::int64_t>;

// A merge without branches on the entries: which list is behind is as random as the indices are. Fewer places are
// written than the shorter list has entries, or one of the lists has come to its end.
template <class I>
KERNEL std::size_t common(View<const I> a, View<const I> b, std::int64_t* in_a, std::int64_t* in_b) {
    std::size_t i = 0, j = 0, count = 0;
    while (i < a.n && j < b.n) {
        const I left = a.data[i], right = b.data[j];
        in_a[count] = static_cast<std::int64_t>(i);
        in_b[count] = static_cast<std::int64_t>(j);
        count += left == right;
        i += left <= right;
        j += right <= left;
    }
    return count;
}

template <class I>
py::tuple common_of(View<const I> a, View<const I> b) {
    Places in_a, in_b;
    {
        py::gil_scoped_release release;
        in_a.reserve(std::min(a.n, b.n));
        in_b.reserve(std::min(a.n, b.n));
        in_a.size = in_b.size = dispatch<common<I>>(a, b, in_a.data(), in_b.data());
    }
    return py::make_tuple(std::move(in_a).to_numpy(), std::move(in_b).to_numpy());
}

// ---- gaps: how many indices are left out before each

// Read as unsigned, so that a descent is a huge gap; a first index of a list follows -1.
template <class I>
KERNEL std::uint64_t gap(const I* indices, std::size_t j) {
    const std::uint64_t next = j ? static_cast<std::uint64_t>(indices[j - 1]) + 1 : 0;
    return static_cast<std::uint64_t>(indices[j]) - next;
}

template <class I>
KERNEL std::int64_t largest_gap(const I* indices, std::size_t k) {
    std::int64_t largest = k ? std::max<std::int64_t>(0, gap(indices, 0)) : 0;
    for (std::size_t j = 1; j < k; ++j) largest = std::max(largest, static_cast<std::int64_t>(gap(indices, j)));
    return largest;
}

template <class I>
KERNEL std::uint64_t bits_of_gaps(const I* indices, std::size_t k) {
    std::uint64_t bits = k ? gap(indices, 0) : 0;
    for (std::size_t j = 1; j < k; ++j) bits |= gap(indices, j);
    return bits;
}

template <class I>
KERNEL void pack_gaps(const I* indices, std::size_t k, unsigned width, std::uint8_t* out) {
    std::uint64_t word = 0;
    unsigned filled = 0;  // bits of the word, always fewer than 64
    for (std::size_t j = 0; j < k; ++j) {
        const std::uint64_t bits = gap(indices, j);
        word |= bits << filled;
        filled += width;
        if (filled < 64) continue;
        std::memcpy(out, &word, 8);  // little-endian
        out += 8;
        filled -= 64;
        word = bits >> (width - filled);
    }
    std::memcpy(out, &word, (filled + 7) / 8);
}

// Word: 64 bits where a gap and the 7 bits before it fit into them, else 128.
template <class Word>
KERNEL std::uint64_t bits_at(View<const std::uint8_t> packed, std::size_t bit, std::uint64_t mask) {
    const std::size_t byte = bit / 8;
    Word word = 0;
    if (byte + sizeof word <= packed.n) std::memcpy(&word, packed.data + byte, sizeof word);
    else std::memcpy(&word, packed.data + byte, packed.n - byte);
    return static_cast<std::uint64_t>(word >> (bit % 8)) & mask;
}

// Stops at the first index that is not below n, which is left in *next; up to there nothing overflows.
template <class Word, class I>
KERNEL bool unpack_gaps(View<const std::uint8_t> packed, unsigned width, View<I> indices, std::uint64_t n,
                        std::uint64_t* outside) {
    const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
    std::uint64_t next = 0;
    for (std::size_t j = 0; j < indices.n; ++j) {
        const std::uint64_t index = next + bits_at<Word>(packed, j * width, mask);
        if (index >= n) return *outside = index, false;
        indices.data[j] = static_cast<I>(index);
        next = index + 1;
    }
    return true;
}

// ---- bitmaps: one bit an element

template <class I>
KERNEL void pack_bitmap(View<const I> indices, View<std::uint8_t> out) {
    if (out.n) std::memset(out.data, 0, out.n);
    for (std::size_t j = 0; j < indices.n; ++j) {
        const auto i = static_cast<std::size_t>(indices.data[j]);
        out.data[i / 8] |= static_cast<std::uint8_t>(1 << (i % 8));
    }
}

// Eight bytes of the bitmap; what lies beyond n bits is left out.
KERNEL std::uint64_t word_at(View<const std::uint8_t> bitmap, std::size_t byte, std::size_t n) {
    std::uint64_t word = 0;
    if (8 * byte + 64 <= n) {
        std::memcpy(&word, bitmap.data + byte, 8);  // little-endian
        return word;
    }
    std::memcpy(&word, bitmap.data + byte, bitmap.n - byte);
    return word & ((std::uint64_t{1} << (n - 8 * byte)) - 1);
}

KERNEL std::size_t count_bits(View<const std::uint8_t> bitmap, std::size_t n) {
    std::size_t count = 0;
    for (std::size_t byte = 0; byte < bitmap.n; byte += 8) count += __builtin_popcountll(word_at(bitmap, byte, n));
    return count;
}

// `indices` has as many places as bits are set. Whole bytes are written while their eight places are there.
template <class I>
KERNEL void unpack_bitmap(View<const std::uint8_t> bitmap, std::size_t n, View<I> indices) {
    std::size_t count = 0, first = 0;
    for (; first < n && count + 64 <= indices.n; first += 64) {
        std::uint64_t word = word_at(bitmap, first / 8, n);
        for (std::size_t i = first; word; word >>= 8, i += 8)
            count += write_set_bits(static_cast<std::uint8_t>(word), i, indices.data + count);
    }
    for (; first < n; first += 64)
        for (std::uint64_t word = word_at(bitmap, first / 8, n); word; word &= word - 1)
            indices.data[count++] = static_cast<I>(first + __builtin_ctzll(word));
}

// ---- arguments

std::size_t bytes_for(std::size_t bits) { return bits / 8 + (bits % 8 != 0); }

unsigned checked_width(std::int64_t width) {
    if (width < 0 || width > 63) throw InvalidArgument("width must be in [0, 63], got " + std::to_string(width));
    return static_cast<unsigned>(width);
}

std::size_t checked_length(std::int64_t n) {
    if (n < 0) throw InvalidArgument("n must be at least 0, got " + std::to_string(n));
    return static_cast<std::size_t>(n);
}

template <class I>
void require_wide_enough(std::size_t n) {
    if (n > static_cast<std::size_t>(std::numeric_limits<I>::max()))
        throw InvalidArgument("indices must be int64 for n = " + std::to_string(n));
}

template <class I>
void pack_gaps_checked(View<const I> indices, unsigned width, View<std::uint8_t> out) {
    bool fits;
    {
        py::gil_scoped_release release;
        fits = dispatch<bits_of_gaps<I>>(indices.data, indices.n) >> width == 0;
        if (fits) dispatch<pack_gaps<I>>(indices.data, indices.n, width, out.data);
    }
    if (!fits) throw InvalidArgument("indices must ascend with gaps below 2^" + std::to_string(width));
}

template <class I>
void unpack_gaps_checked(View<const std::uint8_t> packed, unsigned width, std::size_t n, View<I> indices) {
    std::uint64_t outside = 0;
    bool inside;
    {
        py::gil_scoped_release release;
        inside = width <= 57 ? dispatch<unpack_gaps<std::uint64_t, I>>(packed, width, indices, n, &outside)
                             : dispatch<unpack_gaps<unsigned __int128, I>>(packed, width, indices, n, &outside);
    }
    if (!inside)
        throw InvalidArgument("indices must be in [0, " + std::to_string(n) + "), got " + std::to_string(outside));
}

template <class I>
void unpack_bitmap_checked(View<const std::uint8_t> bitmap, std::size_t n, View<I> indices) {
    std::size_t count;
    {
        py::gil_scoped_release release;
        count = dispatch<count_bits>(bitmap, n);
        if (count == indices.n) dispatch<unpack_bitmap<I>>(bitmap, n, indices);
    }
    if (count != indices.n)
        throw InvalidArgument("the bitmap must hold " + std::to_string(indices.n) + " indices, got " +
                              std::to_string(count));
}

void bind_gaps(py::module_& m) {
    m.def("largest_gap", [](const py::array& indices) {
        std::int64_t largest = 0;
        visit_index(indices, "indices", [&](auto zero) {
            using I = decltype(zero);
            const auto at = input<I>(indices, "indices");
            py::gil_scoped_release release;
            largest = dispatch<largest_gap<I>>(at.data, at.n);
        });
        return largest;
    }, py::arg("indices"), "The largest number of indices left out before any of these; 0 for none.");

    m.def("pack_gaps", [](const py::array& indices, std::int64_t width, py::array out) {
        visit_index(indices, "indices", [&](auto zero) {
            const auto at = input<decltype(zero)>(indices, "indices");
            const unsigned bits = checked_width(width);
            pack_gaps_checked(at, bits, output<std::uint8_t>(out, "out", bytes_for(at.n * bits)));
        });
    }, py::arg("indices"), py::arg("width"), py::arg("out"), "The gaps before indices, width bits each.");

    m.def("unpack_gaps_into", [](const py::array& packed, std::int64_t width, std::int64_t n, py::array indices) {
        visit_index(indices, "indices", [&](auto zero) {
            using I = decltype(zero);
            const auto to = output<I>(indices, "indices");
            const unsigned bits = checked_width(width);
            const std::size_t length = checked_length(n);
            require_wide_enough<I>(length);
            unpack_gaps_checked(input<std::uint8_t>(packed, "packed", bytes_for(to.n * bits)), bits, length, to);
        });
    }, py::arg("packed"), py::arg("width"), py::arg("n"), py::arg("indices"), "The inverse of pack_gaps.");
}

void bind_bitmaps(py::module_& m) {
    m.def("pack_bitmap", [](const py::array& indices, std::int64_t n, py::array out) {
        visit_index(indices, "indices", [&](auto zero) {
            using I = decltype(zero);
            const std::size_t length = checked_length(n);
            const auto at = input<I>(indices, "indices");
            const auto to = output<std::uint8_t>(out, "out", bytes_for(length));
            require_in_range(at, length);
            py::gil_scoped_release release;
            dispatch<pack_bitmap<I>>(at, to);
        });
    }, py::arg("indices"), py::arg("n"), py::arg("out"), "Bit i mod 8 of out[i div 8] is set for every i of indices.");

    m.def("unpack_bitmap_into", [](const py::array& bitmap, std::int64_t n, py::array indices) {
        visit_index(indices, "indices", [&](auto zero) {
            using I = decltype(zero);
            const std::size_t length = checked_length(n);
            require_wide_enough<I>(length);
            const auto to = output<I>(indices, "indices");
            unpack_bitmap_checked(input<std::uint8_t>(bitmap, "bitmap", bytes_for(length)), length, to);
        });
    }, py::arg("bitmap"), py::arg("n"), py::arg("indices"), "The inverse of pack_bitmap.");
}

}  // namespace

void bind_lists(py::module_& m) {
    m.def("common", [](const py::array& a, const py::array& b) {
        py::tuple places;
        visit_index(a, "a", [&](auto zero) {
            using I = decltype(zero);
            const auto left = input<I>(a, "a"), right = input<I>(b, "b");
            require_ascending(left);
            require_ascending(right);
            places = common_of(left, right);
        });
        return places;
    }, py::arg("a"), py::arg("b"), "Where in a and where in b the entries stand that both have.");
    bind_gaps(m);
    bind_bitmaps(m);
}
