// Natural compression: stochastic rounding to powers of two, one byte an entry.
#include <atomic>

#include "bind.h"
#include "coded.h"
#include "philox.h"
#include "real.h"

namespace {

constexpr std::size_t head_bytes = sizeof(std::int32_t);  // of a message: the exponent of the largest power
constexpr int not_finite = std::numeric_limits<std::int32_t>::max();  // as a head: there was NaN or infinity

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
class Powers : public Values<T> {
    const std::uint8_t* packed_;
    int top_;

public:
    Powers(View<const std::uint8_t> packed, std::int64_t top)
        : Values<T>(packed.n), packed_(packed.data), top_(static_cast<int>(top)) {}
    void read(std::size_t begin, std::size_t end, T* out) const override {
        if (top_ == not_finite)
            std::fill(out, out + (end - begin), std::numeric_limits<T>::quiet_NaN());
        else
            dispatch<unpack_natural<T>>(packed_ + begin, top_, out, end - begin);
    }
};

template <class T>
void require_top(std::int64_t top) {
    if (top < Format<T>::lowest_top || top > Format<T>::highest_top)
        throw InvalidArgument("top must be in [" + std::to_string(Format<T>::lowest_top) + ", " +
                              std::to_string(Format<T>::highest_top) + "] for " + type_name<T>() + ", got " +
                              std::to_string(top));
}

}  // namespace

template <class T>
Source<T> values_of_powers(std::size_t n, const py::array& packed, std::int64_t top) {
    require_top<T>(top);
    return std::make_unique<Powers<T>>(input<std::uint8_t>(packed, "packed", n), top);
}

template <class T>
Source<T> values_of_message(std::size_t n, const py::array& message) {
    const auto bytes = input<std::uint8_t>(message, "message", head_bytes + n);
    std::int32_t top;
    std::memcpy(&top, bytes.data, head_bytes);
    if (top != not_finite) require_top<T>(top);
    return std::make_unique<Powers<T>>(View<const std::uint8_t>{bytes.data + head_bytes, n}, top);
}

template Source<float> values_of_powers(std::size_t, const py::array&, std::int64_t);
template Source<double> values_of_powers(std::size_t, const py::array&, std::int64_t);
template Source<float> values_of_message(std::size_t, const py::array&);
template Source<double> values_of_message(std::size_t, const py::array&);

void bind_natural(py::module_& m) {
    m.def("pack_natural", [](const py::array& x, std::int64_t top, std::int64_t first, const py::object& key,
                             py::array out) {
        visit_real(x, "x", [&](auto zero) {
            using T = decltype(zero);
            require_top<T>(top);
            const auto from = input<T>(x, "x");
            const auto to = output<std::uint8_t>(out, "out", from.n);
            const Key stream = key_of(key);
            const std::uint64_t number = first_of(first);
            std::atomic<bool> fits{true};
            {
                py::gil_scoped_release release;
                parallel_parts(from.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
                    if (!dispatch<pack_natural<T>>(from.data + begin, end - begin, static_cast<int>(top), stream,
                                                   number + begin, to.data + begin))
                        fits = false;
                });
            }
            if (!fits) throw InvalidArgument("magnitudes must be at most 2^" + std::to_string(top));
        });
    }, py::arg("x"), py::arg("top"), py::arg("first"), py::arg("key"), py::arg("out"),
       "Stochastic rounding to powers of two, a byte each: the sign, and c = 1 .. 127 for 2^(top - 127 + c) or 0.");

    m.def("unpack_natural", [](const py::array& packed, std::int64_t top, py::array out) {
        write_values(out, [&](auto zero, std::size_t n) { return values_of_powers<decltype(zero)>(n, packed, top); });
    }, py::arg("packed"), py::arg("top"), py::arg("out"), "The numbers that pack_natural's codes stand for.");

    m.def("decode_natural", [](const py::array& message, py::array out, bool) {
        write_values(out, [&](auto zero, std::size_t n) {
            return values_of_message<decltype(zero)>(n, message);
        });
    }, py::arg("message"), py::arg("out"), py::arg("known") = false,
       "Values of encode_natural's message, NaN if any was not finite; refuses any other head.");
}
