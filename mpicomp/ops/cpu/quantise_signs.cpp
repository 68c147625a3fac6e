// One bit an entry: its sign.
#include "bind.h"
#include "groups.h"
#include "real.h"

namespace {

constexpr std::size_t block = 1024;  // elements whose flags and values stay in the L1 cache

// One multiplication moves the lowest bits of eight bytes, in their order, to the highest byte.
KERNEL std::uint8_t bits_of_flags(const std::uint8_t* flags) {
    std::uint64_t word;
    std::memcpy(&word, flags, 8);
    return static_cast<std::uint8_t>(word * 0x0102040810204080 >> 56);
}

template <class T>
KERNEL void pack_signs(const T* x, std::size_t n, std::uint8_t* out) {
    alignas(64) std::uint8_t flags[block];
    for (std::size_t begin = 0; begin < n; begin += block) {
        const std::size_t length = std::min(block, n - begin);
        for (std::size_t i = 0; i < length; ++i) flags[i] = bits_of(x[begin + i]) >= 0;
        std::memset(flags + length, 0, (8 - length % 8) % 8);
        for (std::size_t i = 0; i < length; i += 8) out[(begin + i) / 8] = bits_of_flags(flags + i);
    }
}

// masks[i] = all bits set where bit i is.
template <class B>
KERNEL void expand_bits(const std::uint8_t* packed, std::size_t bytes, B* masks) {
    for (std::size_t at = 0; at < bytes; ++at)
        for (int bit = 0; bit < 8; ++bit) masks[8 * at + bit] = packed[at] & (1 << bit) ? -1 : 0;
}

template <class T>
KERNEL void unpack_signs(const std::uint8_t* packed, Groups groups, const T* negative, const T* positive, T* out,
                         std::size_t n) {
    alignas(64) T below[block], above[block];
    alignas(64) Bits<T> masks[block];
    std::size_t negative_group = 0, positive_group = 0;
    for (std::size_t begin = 0; begin < n; begin += block) {
        const std::size_t length = std::min(block, n - begin), end = begin + length;
        expand_bits(packed + begin / 8, (length + 7) / 8, masks);
        expand(groups, &negative_group, begin, end, [=](std::size_t g) KERNEL_LAMBDA { return negative[g]; }, below);
        expand(groups, &positive_group, begin, end, [=](std::size_t g) KERNEL_LAMBDA { return positive[g]; }, above);
        for (std::size_t i = 0; i < length; ++i) out[begin + i] = masks[i] ? above[i] : below[i];
    }
}

}  // namespace

void bind_signs(py::module_& m) {
    m.def("pack_signs", [](const py::array& x, py::array out) {
        visit_real(x, "x", [&](auto zero) {
            using T = decltype(zero);
            const auto from = input<T>(x, "x");
            const auto to = output<std::uint8_t>(out, "out", (from.n + 7) / 8);
            py::gil_scoped_release release;
            dispatch<pack_signs<T>>(from.data, from.n, to.data);
        });
    }, py::arg("x"), py::arg("out"), "One bit an entry, little-endian: 1 where the sign bit of x is not set.");

    m.def("unpack_two_values", [](const py::array& packed, const py::array& bounds, const py::array& negative,
                             const py::array& positive, py::array out) {
        visit_real(out, "out", [&](auto zero) {
            using T = decltype(zero);
            const auto to = output<T>(out, "out");
            const auto from = input<std::uint8_t>(packed, "packed", (to.n + 7) / 8);
            const Groups groups = groups_of(bounds, to.n);
            const auto below = input<T>(negative, "negative", groups.count);
            const auto above = input<T>(positive, "positive", groups.count);
            py::gil_scoped_release release;
            dispatch<unpack_signs<T>>(from.data, groups, below.data, above.data, to.data, to.n);
        });
    }, py::arg("packed"), py::arg("bounds"), py::arg("negative"), py::arg("positive"), py::arg("out"),
       "Each entry becomes its group's positive where its bit is 1, else its negative.");
}
