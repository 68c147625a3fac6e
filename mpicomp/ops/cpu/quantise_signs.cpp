// One bit an entry: its sign.
#include "bind.h"
#include "coded.h"
#include "groups.h"
#include "real.h"

namespace {

constexpr std::size_t flagged_block = 1024;  // elements whose flags and values stay in the L1 cache

// One multiplication moves the lowest bits of eight bytes, in their order, to the highest byte.
KERNEL std::uint8_t bits_of_flags(const std::uint8_t* flags) {
    std::uint64_t word;
    std::memcpy(&word, flags, 8);
    return static_cast<std::uint8_t>(word * 0x0102040810204080 >> 56);
}

template <class T>
KERNEL void pack_signs(const T* x, std::size_t n, std::uint8_t* out) {
    alignas(64) std::uint8_t flags[flagged_block];
    for (std::size_t begin = 0; begin < n; begin += flagged_block) {
        const std::size_t length = std::min(flagged_block, n - begin);
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

// No `negative`: minus `positive`.
template <class T>
KERNEL void unpack_signs(const std::uint8_t* packed, Groups groups, std::size_t group, const T* negative,
                         const T* positive, std::size_t first, std::size_t last, T* out) {
    alignas(64) T below[flagged_block], above[flagged_block];
    alignas(64) Bits<T> masks[flagged_block];
    std::size_t negative_group = group, positive_group = group;
    for (std::size_t begin = first; begin < last; begin += flagged_block) {
        const std::size_t end = std::min(last, begin + flagged_block), length = end - begin;
        expand_bits(packed + begin / 8, (length + 7) / 8, masks);
        expand(groups, &positive_group, begin, end, [=](std::size_t g) KERNEL_LAMBDA { return positive[g]; }, above);
        if (negative)
            expand(groups, &negative_group, begin, end, [=](std::size_t g) KERNEL_LAMBDA { return negative[g]; }, below);
        else
            for (std::size_t i = 0; i < length; ++i) below[i] = -above[i];
        for (std::size_t i = 0; i < length; ++i) out[begin - first + i] = masks[i] ? above[i] : below[i];
    }
}

template <class T>
class Signs : public Values<T> {
    const std::uint8_t* packed_;
    Groups groups_;
    const T *negative_, *positive_;

public:
    Signs(std::size_t n, const std::uint8_t* packed, Groups groups, const T* negative, const T* positive)
        : Values<T>(n), packed_(packed), groups_(groups), negative_(negative), positive_(positive) {}
    void read(std::size_t begin, std::size_t end, T* out) const override {
        dispatch<unpack_signs<T>>(packed_, groups_, group_at(groups_, begin), negative_, positive_, begin, end, out);
    }
};

}  // namespace

template <class T>
Source<T> values_of_signs(std::size_t n, const py::array& packed, const py::array& bounds, const py::object& negative,
                          const py::array& positive) {
    const auto from = input<std::uint8_t>(packed, "packed", (n + 7) / 8);
    const Groups groups = groups_of(bounds, n);
    const T* below = optional_input<T>(negative, "negative", groups.count);
    return std::make_unique<Signs<T>>(n, from.data, groups, below, input<T>(positive, "positive", groups.count).data);
}

template Source<float> values_of_signs(std::size_t, const py::array&, const py::array&, const py::object&,
                                       const py::array&);
template Source<double> values_of_signs(std::size_t, const py::array&, const py::array&, const py::object&,
                                        const py::array&);

void bind_signs(py::module_& m) {
    m.def("pack_signs", [](const py::array& x, py::array out) {
        visit_real(x, "x", [&](auto zero) {
            using T = decltype(zero);
            const auto from = input<T>(x, "x");
            const auto to = output<std::uint8_t>(out, "out", (from.n + 7) / 8);
            py::gil_scoped_release release;
            parallel_parts(from.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
                dispatch<pack_signs<T>>(from.data + begin, end - begin, to.data + begin / 8);
            });
        });
    }, py::arg("x"), py::arg("out"), "One bit an entry, little-endian: 1 where the sign bit of x is not set.");

    m.def("unpack_signs", [](const py::array& packed, const py::array& bounds, const py::object& negative,
                             const py::array& positive, py::array out) {
        write_values(out, [&](auto zero, std::size_t n) {
            return values_of_signs<decltype(zero)>(n, packed, bounds, negative, positive);
        });
    }, py::arg("packed"), py::arg("bounds"), py::arg("negative").none(true), py::arg("positive"), py::arg("out"),
       "Each entry becomes its group's positive where its bit is 1, else its negative (None: minus positive).");
}
