// Natural compression: stochastic rounding to powers of two, one byte an entry.
#include "bind.h"
#include "philox.h"
#include "real.h"

namespace {

template <class T>
struct Format {
    static constexpr int fraction_bits = std::numeric_limits<T>::digits - 1;
    static constexpr int bias = std::numeric_limits<T>::max_exponent - 1;
    static constexpr int lowest_top = 127 - bias, highest_top = bias;  // 2^(top - 126) .. 2^top are normal numbers
};

// 2^exponent, a normal number.
template <class T>
KERNEL Bits<T> bits_of_power(int exponent) {
    return static_cast<Bits<T>>(exponent + Format<T>::bias) << Format<T>::fraction_bits;
}

// False where a magnitude is above 2^top or NaN; out then holds anything. With the exponent bits of 1 a fraction is
// 1 + the share of the way from one power of two to the next.
template <class T>
KERNEL bool pack_natural(const T* x, std::size_t n, int top, Key key, std::uint64_t first, std::uint8_t* out) {
    using B = Bits<T>;
    constexpr B one = static_cast<B>(Format<T>::bias) << Format<T>::fraction_bits;
    constexpr B fraction = (B{1} << Format<T>::fraction_bits) - 1;
    const B highest = bits_of_power<T>(top), lowest = bits_of_power<T>(top - 126);
    const B offset = lowest >> Format<T>::fraction_bits;
    const T grow = real_of<T>(bits_of_power<T>(126 - top));
    RandomBlock random;
    B excess = 0;
    for (std::size_t begin = 0; begin < n; begin += random_block) {
        const std::size_t length = std::min(random_block, n - begin);
        const std::uint32_t* words = random.fill(key, first + begin, length);
        for (std::size_t i = 0; i < length; ++i) {
            const B bits = bits_of(x[begin + i]), size = bits & Real<T>::magnitude;
            const bool tiny = size < lowest;
            const T share = choose(tiny, real_of<T>(size) * grow, real_of<T>((size & fraction) | one) - T{1});
            const B below = tiny ? 0 : (size >> Format<T>::fraction_bits) - offset + 1;
            const B up = static_cast<T>(uniform_of(words[i])) < share;
            excess |= highest - size;
            out[begin + i] = static_cast<std::uint8_t>((below + up) | (bits < 0 ? 128 : 0));
        }
    }
    return excess >= 0;
}

template <class T>
KERNEL void unpack_natural(const std::uint8_t* packed, int top, T* out, std::size_t n) {
    using B = Bits<T>;
    constexpr B step = B{1} << Format<T>::fraction_bits;
    const B lowest = bits_of_power<T>(top - 126);
    for (std::size_t i = 0; i < n; ++i) {
        const B code = packed[i] & 127, size = lowest + (code - 1) * step;
        const B sign = static_cast<B>(packed[i] >> 7) << (8 * sizeof(B) - 1);
        out[i] = real_of<T>((code ? size : 0) | sign);
    }
}

template <class T>
void require_top(std::int64_t top) {
    if (top < Format<T>::lowest_top || top > Format<T>::highest_top)
        throw InvalidArgument("top must be in [" + std::to_string(Format<T>::lowest_top) + ", " +
                              std::to_string(Format<T>::highest_top) + "] for " + type_name<T>() + ", got " +
                              std::to_string(top));
}

}  // namespace

void bind_natural(py::module_& m) {
    m.def("pack_natural", [](const py::array& x, std::int64_t top, std::int64_t first, const py::object& key,
                             py::array out) {
        visit_real(x, "x", [&](auto zero) {
            using T = decltype(zero);
            require_top<T>(top);
            const auto from = input<T>(x, "x");
            const auto to = output<std::uint8_t>(out, "out", from.n);
            const Key stream = key_of(key);
            const std::uint64_t begin = first_of(first);
            bool fits = false;
            {
                py::gil_scoped_release release;
                fits = dispatch<pack_natural<T>>(from.data, from.n, static_cast<int>(top), stream, begin, to.data);
            }
            if (!fits) throw InvalidArgument("magnitudes must be at most 2^" + std::to_string(top));
        });
    }, py::arg("x"), py::arg("top"), py::arg("first"), py::arg("key"), py::arg("out"),
       "Stochastic rounding to powers of two, a byte each: the sign, and c = 1 .. 127 for 2^(top - 127 + c) or 0.");

    m.def("unpack_natural", [](const py::array& packed, std::int64_t top, py::array out) {
        visit_real(out, "out", [&](auto zero) {
            using T = decltype(zero);
            require_top<T>(top);
            const auto to = output<T>(out, "out");
            const auto from = input<std::uint8_t>(packed, "packed", to.n);
            py::gil_scoped_release release;
            dispatch<unpack_natural<T>>(from.data, static_cast<int>(top), to.data, to.n);
        });
    }, py::arg("packed"), py::arg("top"), py::arg("out"), "The numbers that pack_natural's codes stand for.");
}
