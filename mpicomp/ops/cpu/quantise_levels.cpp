// Stochastic rounding to few levels of a group's scale, packed into 2, 4, 8 or 16 bits an entry.
#include <cmath>

#include "bind.h"
#include "coded.h"
#include "groups.h"
#include "philox.h"
#include "real.h"

namespace {

constexpr std::size_t levels_block = random_block;  // elements between whose steps everything stays in the L1 cache

// A code before packing: as wide as it is on the wire where that is whole bytes.
template <int width>
using Code = std::conditional_t<width == 16, std::uint16_t, std::uint8_t>;

// The bytes that n codes take on the wire.
KERNEL std::size_t packed_bytes(std::size_t n, std::size_t width) { return n / 8 * width + (n % 8 * width + 7) / 8; }

// out[i] = the codes that share byte i, lowest first. They are read as one word (little-endian), and what is shifted
// above the low byte is cut off.
template <int width>
KERNEL void pack(const Code<width>* codes, std::size_t bytes, std::uint8_t* out) {
    if constexpr (width >= 8) {
        std::memcpy(out, codes, bytes);
    } else {
        using Word = std::conditional_t<width == 4, std::uint16_t, std::uint32_t>;
        for (std::size_t i = 0; i < bytes; ++i) {
            Word word;
            std::memcpy(&word, codes + i * sizeof word, sizeof word);
            if constexpr (width == 4) out[i] = static_cast<std::uint8_t>(word | word >> 4);
            if constexpr (width == 2) out[i] = static_cast<std::uint8_t>(word | word >> 6 | word >> 12 | word >> 18);
        }
    }
}

template <int width>
KERNEL void unpack(const std::uint8_t* packed, std::size_t bytes, Code<width>* codes) {
    if constexpr (width >= 8) {
        std::memcpy(codes, packed, bytes);
    } else {
        using Word = std::conditional_t<width == 4, std::uint16_t, std::uint32_t>;
        for (std::size_t i = 0; i < bytes; ++i) {
            const Word byte = packed[i];
            Word word = (byte & 15) | (byte >> 4) << 8;
            if constexpr (width == 2)
                word = (byte & 3) | (byte >> 2 & 3) << 8 | (byte >> 4 & 3) << 16 | (byte >> 6) << 24;
            std::memcpy(codes + i * sizeof word, &word, sizeof word);
        }
    }
}

// NaN, which fails every comparison, counts as 0.
template <class T, class C>
KERNEL void round_levels(const T* x, const T* inverse, const std::uint32_t* words, std::size_t n, T levels, C* codes) {
    const auto middle = static_cast<std::int32_t>(levels);
    for (std::size_t i = 0; i < n; ++i) {
        const T size = std::fabs(x[i]) * inverse[i] + static_cast<T>(uniform_of(words[i]));
        const T above = size > 0 ? size : T{0};
        const auto level = static_cast<std::int32_t>(above < levels ? above : levels);
        codes[i] = static_cast<C>(middle + (bits_of(x[i]) < 0 ? -level : level));
    }
}

template <class T, int width>
KERNEL void pack_levels(const T* x, std::size_t start, std::size_t stop, Groups groups, std::size_t group,
                        const T* scales, T levels, Key key, std::uint64_t first, std::uint8_t* out) {
    alignas(64) T inverse[levels_block];
    alignas(64) Code<width> codes[levels_block];
    RandomBlock random;
    const auto inverse_of = [=](std::size_t g) KERNEL_LAMBDA { return scales[g] > 0 ? levels / scales[g] : T{0}; };
    for (std::size_t begin = start; begin < stop; begin += levels_block) {
        const std::size_t length = std::min(levels_block, stop - begin);
        expand(groups, &group, begin, begin + length, inverse_of, inverse);
        round_levels(x + begin, inverse, random.fill(key, first + begin, length), length, levels, codes);
        std::memset(codes + length, 0, (8 - length % 8) % 8 * sizeof *codes);
        pack<width>(codes, packed_bytes(length, width), out + packed_bytes(begin, width));
    }
}

template <class T, int width>
KERNEL void unpack_levels(const std::uint8_t* packed, Groups groups, std::size_t group, const T* scales, T levels,
                          std::size_t first, std::size_t last, T* out) {
    alignas(64) T unit[levels_block];
    alignas(64) Code<width> codes[levels_block];
    const auto middle = static_cast<std::int32_t>(levels);
    const auto unit_of = [=](std::size_t g) KERNEL_LAMBDA { return scales[g] / levels; };
    for (std::size_t begin = first; begin < last; begin += levels_block) {
        const std::size_t end = std::min(last, begin + levels_block), length = end - begin;
        expand(groups, &group, begin, end, unit_of, unit);
        unpack<width>(packed + packed_bytes(begin, width), packed_bytes(length, width), codes);
        for (std::size_t i = 0; i < length; ++i) out[begin - first + i] = static_cast<T>(codes[i] - middle) * unit[i];
    }
}

template <class T, int width>
class Levels : public Values<T> {
    const std::uint8_t* packed_;
    Groups groups_;
    const T* scales_;
    T levels_;

public:
    Levels(std::size_t n, const std::uint8_t* packed, Groups groups, const T* scales, T levels)
        : Values<T>(n), packed_(packed), groups_(groups), scales_(scales), levels_(levels) {}
    void read(std::size_t begin, std::size_t end, T* out) const override {
        dispatch<unpack_levels<T, width>>(packed_, groups_, group_at(groups_, begin), scales_, levels_, begin, end,
                                          out);
    }
};

// Calls f(integral_constant of width), once width and levels are known to fit.
template <class F>
void with_width(std::int64_t levels, std::int64_t width, F&& f) {
    const bool known = width == 2 || width == 4 || width == 8 || width == 16;
    if (!known || levels < 1 || levels >= std::int64_t{1} << (width - 1))
        throw InvalidArgument("levels must be in [1, 2^(width-1) - 1] for a width of 2, 4, 8 or 16, got " +
                              std::to_string(levels) + " and " + std::to_string(width));
    if (width == 2) f(std::integral_constant<int, 2>());
    if (width == 4) f(std::integral_constant<int, 4>());
    if (width == 8) f(std::integral_constant<int, 8>());
    if (width == 16) f(std::integral_constant<int, 16>());
}

}  // namespace

template <class T>
Source<T> values_of_levels(std::size_t n, const py::array& packed, const py::array& bounds, const py::array& scales,
                           std::int64_t levels, std::int64_t width) {
    Source<T> values;
    with_width(levels, width, [&](auto bits) {
        constexpr int size = decltype(bits)::value;
        const auto from = input<std::uint8_t>(packed, "packed", packed_bytes(n, size));
        const Groups groups = groups_of(bounds, n);
        const auto s = input<T>(scales, "scales", groups.count);
        values = std::make_unique<Levels<T, size>>(n, from.data, groups, s.data, static_cast<T>(levels));
    });
    return values;
}

template Source<float> values_of_levels(std::size_t, const py::array&, const py::array&, const py::array&,
                                        std::int64_t, std::int64_t);
template Source<double> values_of_levels(std::size_t, const py::array&, const py::array&, const py::array&,
                                         std::int64_t, std::int64_t);

void bind_levels(py::module_& m) {
    m.def("pack_levels", [](const py::array& x, const py::array& bounds, const py::array& scales, std::int64_t levels,
                            std::int64_t width, std::int64_t first, const py::object& key, py::array out) {
        visit_real(x, "x", [&](auto zero) {
            with_width(levels, width, [&](auto bits) {
                using T = decltype(zero);
                const auto from = input<T>(x, "x");
                const Groups groups = groups_of(bounds, from.n);
                const auto s = input<T>(scales, "scales", groups.count);
                const auto to = output<std::uint8_t>(out, "out", packed_bytes(from.n, bits));
                const Key stream = key_of(key);
                const std::uint64_t number = first_of(first);
                py::gil_scoped_release release;
                parallel_parts(from.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
                    dispatch<pack_levels<T, decltype(bits)::value>>(
                        from.data, begin, end, groups, group_at(groups, begin), s.data, static_cast<T>(levels), stream,
                        number, to.data);
                });
            });
        });
    }, py::arg("x"), py::arg("bounds"), py::arg("scales"), py::arg("levels"), py::arg("width"), py::arg("first"),
       py::arg("key"), py::arg("out"),
       "Codes levels + sign(x) * min(levels, floor(|x| * (levels / scale) + uniform)), width bits each.");

    m.def("unpack_levels", [](const py::array& packed, const py::array& bounds, const py::array& scales,
                              std::int64_t levels, std::int64_t width, py::array out) {
        write_values(out, [&](auto zero, std::size_t n) {
            return values_of_levels<decltype(zero)>(n, packed, bounds, scales, levels, width);
        });
    }, py::arg("packed"), py::arg("bounds"), py::arg("scales"), py::arg("levels"), py::arg("width"), py::arg("out"),
       "out = (code - levels) * (scale / levels).");
}
