// Ascending index lists: what two have in common, and how they are written in few bytes.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

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
KERNEL std::size_t common(View<const I> a, std::size_t i, View<const I> b, std::size_t j, std::int64_t* in_a,
                          std::int64_t* in_b) {
    std::size_t count = 0;
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
    struct Part {
        Places in_a, in_b;
    };
    Part all;
    {
        py::gil_scoped_release release;
        const std::size_t grain = listed_in_part(a.n, indices_in_part);
        std::vector<Part> parts(part_count(a.n, grain));
        parallel_parts(a.n, grain, [&](std::size_t part, std::size_t begin, std::size_t end) {
            const std::size_t first = begin ? below(b, a.data[begin]) : 0;
            const std::size_t last = end < a.n ? below(b, a.data[end]) : b.n;
            Part& mine = parts[part];
            mine.in_a.reserve(std::min(end - begin, last - first));
            mine.in_b.reserve(std::min(end - begin, last - first));
            mine.in_a.size = mine.in_b.size = dispatch<common<I>>(View<const I>{a.data, end}, begin,
                                                                  View<const I>{b.data, last}, first,
                                                                  mine.in_a.data(), mine.in_b.data());
        });
        all = {joined(parts, &Part::in_a), joined(parts, &Part::in_b)};
    }
    return py::make_tuple(std::move(all.in_a).to_numpy(), std::move(all.in_b).to_numpy());
}

// ---- gaps: how many indices are left out before each

// Read as unsigned, so that a descent is a huge gap; a first index of a list follows -1.
template <class I>
KERNEL std::uint64_t gap(const I* indices, std::size_t j) {
    const std::uint64_t next = j ? static_cast<std::uint64_t>(indices[j - 1]) + 1 : 0;
    return static_cast<std::uint64_t>(indices[j]) - next;
}

template <class I>
KERNEL std::int64_t largest_gap(const I* indices, std::size_t begin, std::size_t end) {
    std::int64_t largest = std::max<std::int64_t>(0, gap(indices, begin));
    for (std::size_t j = begin + 1; j < end; ++j)
        largest = std::max(largest, static_cast<std::int64_t>(gap(indices, j)));
    return largest;
}

template <class I>
KERNEL std::uint64_t bits_of_gaps(const I* indices, std::size_t begin, std::size_t end) {
    std::uint64_t bits = gap(indices, begin);
    for (std::size_t j = begin + 1; j < end; ++j) bits |= gap(indices, j);
    return bits;
}

// Of indices from a multiple of 64 on, to the bytes that are theirs.
template <class I>
KERNEL void pack_gaps(const I* indices, std::size_t begin, std::size_t end, unsigned width, std::uint8_t* out) {
    std::uint64_t word = 0;
    unsigned filled = 0;  // bits of the word, always fewer than 64
    out += begin / 8 * width;
    for (std::size_t j = begin; j < end; ++j) {
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

// As if nothing came before `begin`. Stops at the first index that is not below n, which is left in *next, else the
// index after the last; up to there nothing overflows.
template <class Word, class I>
KERNEL bool unpack_gaps(View<const std::uint8_t> packed, unsigned width, I* indices, std::size_t begin, std::size_t end,
                        std::uint64_t n, std::uint64_t* next) {
    const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
    *next = 0;
    for (std::size_t j = begin; j < end; ++j) {
        const std::uint64_t index = *next + bits_at<Word>(packed, j * width, mask);
        *next = index;
        if (index >= n) return false;
        indices[j] = static_cast<I>(index);
        ++*next;
    }
    return true;
}

template <class I>
KERNEL void move_on(I* indices, std::size_t begin, std::size_t end, std::uint64_t by) {
    for (std::size_t j = begin; j < end; ++j) indices[j] += static_cast<I>(by);
}

// ---- bitmaps: one bit per element

template <class I>
KERNEL void set_bits_at(View<const I> indices, std::uint8_t* out) {
    for (std::size_t j = 0; j < indices.n; ++j) {
        const auto i = static_cast<std::size_t>(indices.data[j]);
        out[i / 8] |= static_cast<std::uint8_t>(1 << (i % 8));
    }
}

constexpr std::size_t bytes_in_part = 1 << 15;  // of bitmaps; a multiple of 8

template <class I>
void pack_bitmap(View<const I> indices, View<std::uint8_t> out) {
    const bool ascending = is_shared(out.n, bytes_in_part) && ascends_throughout(indices.data, indices.n);
    parallel_parts(out.n, ascending ? bytes_in_part : std::max<std::size_t>(1, out.n), [&](std::size_t, std::size_t begin, std::size_t end) {
        const bool all = end - begin == out.n;
        const std::size_t first = all ? 0 : below(indices, 8 * begin), last = all ? indices.n : below(indices, 8 * end);
        std::memset(out.data + begin, 0, end - begin);
        dispatch<set_bits_at<I>>(View<const I>{indices.data + first, last - first}, out.data);
    });
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

KERNEL std::size_t count_bits(View<const std::uint8_t> bitmap, std::size_t begin, std::size_t end, std::size_t n) {
    std::size_t count = 0;
    for (std::size_t byte = begin; byte < end; byte += 8) count += __builtin_popcountll(word_at(bitmap, byte, n));
    return count;
}

// From bit `first` on to the last below `end`; `indices` has as many places as bits are set there. Whole bytes are
// written while their eight places are there.
template <class I>
KERNEL void unpack_bitmap(View<const std::uint8_t> bitmap, std::size_t first, std::size_t end, std::size_t n,
                          View<I> indices) {
    std::size_t count = 0;
    for (; first < end && count + 64 <= indices.n; first += 64) {
        std::uint64_t word = word_at(bitmap, first / 8, n);
        for (std::size_t i = first; word; word >>= 8, i += 8)
            count += write_set_bits(static_cast<std::uint8_t>(word), i, indices.data + count);
    }
    for (; first < end; first += 64)
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
        std::atomic<std::uint64_t> bits{0};
        parallel_parts(indices.n, indices_in_part, [&](std::size_t, std::size_t begin, std::size_t end) {
            bits |= dispatch<bits_of_gaps<I>>(indices.data, begin, end);
        });
        fits = bits >> width == 0;
        if (fits)
            parallel_parts(indices.n, indices_in_part, [&](std::size_t, std::size_t begin, std::size_t end) {
                dispatch<pack_gaps<I>>(indices.data, begin, end, width, out.data);
            });
    }
    if (!fits) throw InvalidArgument("indices must ascend with gaps below 2^" + std::to_string(width));
}

template <class I>
bool unpack_run(View<const std::uint8_t> packed, unsigned width, I* indices, std::size_t begin, std::size_t end,
                std::uint64_t n, std::uint64_t* next) {
    if (width <= 57) return dispatch<unpack_gaps<std::uint64_t, I>>(packed, width, indices, begin, end, n, next);
    return dispatch<unpack_gaps<unsigned __int128, I>>(packed, width, indices, begin, end, n, next);
}

// Every part from 0, and then from where the parts in front of it end. False, and nothing promised of `indices`, where an
// index is not below n.
template <class I>
bool unpack_in_parts(View<const std::uint8_t> packed, unsigned width, std::uint64_t n, View<I> indices) {
    std::vector<std::uint64_t> ends(part_count(indices.n, indices_in_part));
    std::atomic<bool> inside{true};
    parallel_parts(indices.n, indices_in_part, [&](std::size_t part, std::size_t begin, std::size_t end) {
        if (!unpack_run(packed, width, indices.data, begin, end, n, &ends[part])) inside = false;
    });
    if (!inside) return false;
    for (std::size_t part = 1; part < ends.size(); ++part)
        if ((ends[part] += ends[part - 1]) > n) return false;
    parallel_parts(indices.n, indices_in_part, [&](std::size_t part, std::size_t begin, std::size_t end) {
        if (part) dispatch<move_on<I>>(indices.data, begin, end, ends[part - 1]);
    });
    return true;
}

template <class I>
void unpack_gaps_checked(View<const std::uint8_t> packed, unsigned width, std::size_t n, View<I> indices) {
    std::uint64_t outside = 0;
    bool inside;
    {
        py::gil_scoped_release release;
        inside = (is_shared(indices.n, indices_in_part) && unpack_in_parts(packed, width, n, indices)) ||
                 unpack_run(packed, width, indices.data, 0, indices.n, n, &outside);  // also to find the first one outside
    }
    if (!inside)
        throw InvalidArgument("indices must be in [0, " + std::to_string(n) + "), got " + std::to_string(outside));
}

template <class I>
void unpack_bitmap_checked(View<const std::uint8_t> bitmap, std::size_t n, View<I> indices) {
    std::size_t count;
    {
        py::gil_scoped_release release;
        std::vector<std::size_t> ends(part_count(bitmap.n, bytes_in_part));
        parallel_parts(bitmap.n, bytes_in_part, [&](std::size_t part, std::size_t begin, std::size_t end) {
            ends[part] = dispatch<count_bits>(bitmap, begin, end, n);
        });
        std::partial_sum(ends.begin(), ends.end(), ends.begin());
        count = ends.empty() ? 0 : ends.back();
        if (count == indices.n)
            parallel_parts(bitmap.n, bytes_in_part, [&](std::size_t part, std::size_t begin, std::size_t end) {
                const std::size_t first = part ? ends[part - 1] : 0;
                dispatch<unpack_bitmap<I>>(bitmap, 8 * begin, std::min(n, 8 * end), n,
                                           View<I>{indices.data + first, ends[part] - first});
            });
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
            std::vector<std::int64_t> of_parts(part_count(at.n, indices_in_part) + 1);
            parallel_parts(at.n, indices_in_part, [&](std::size_t part, std::size_t begin, std::size_t end) {
                of_parts[part] = dispatch<largest_gap<I>>(at.data, begin, end);
            });
            largest = *std::max_element(of_parts.begin(), of_parts.end());
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
            pack_bitmap(at, to);
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
