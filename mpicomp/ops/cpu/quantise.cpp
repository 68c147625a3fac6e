// Integers for floating-point values: multiples of one unit, rounded to nearest even or stochastically.
#include <atomic>
#include <cmath>

#include "bind.h"
#include "coded.h"
#include "philox.h"
#include "real.h"

namespace {

// To nearest even, as numpy.rint: adding 2^23 (2^52) drops the fraction, and from there on every value is whole.
template <class T>
KERNEL T round_even(T value) {
    constexpr T whole = T{1} / std::numeric_limits<T>::epsilon();
    const T size = std::fabs(value), rounded = (size + whole) - whole;
    return std::copysign(choose(size < whole, rounded, size), value);
}

template <class T>
KERNEL T round_down(T value) {
    const T rounded = round_even(value);
    return rounded - choose(rounded > value, T{1}, T{0});
}

// False where a code does not fit, or is NaN; codes then hold anything.
template <class T, class C, bool stochastic>
KERNEL bool quantise(const T* x, std::size_t n, T inverse, Key key, std::uint64_t first, C* codes) {
    constexpr T limit = static_cast<T>(std::int64_t{1} << (8 * sizeof(C) - 1));  // exact, unlike the largest int32
    RandomBlock random;
    Bits<T> misfits = 0;
    for (std::size_t begin = 0; begin < n; begin += random_block) {
        const std::size_t length = std::min(random_block, n - begin);
        const std::uint32_t* words = stochastic ? random.fill(key, first + begin, length) : nullptr;
        for (std::size_t i = 0; i < length; ++i) {
            const T scaled = x[begin + i] * inverse;
            const T rounded =
                stochastic ? round_down(scaled + static_cast<T>(uniform_of(words[i]))) : round_even(scaled);
            const bool fits = std::fabs(rounded) < limit;
            misfits |= fits ? 0 : 1;
            codes[begin + i] = static_cast<C>(static_cast<std::int32_t>(choose(fits, rounded, T{0})));
        }
    }
    return misfits == 0;
}

template <class T, class C>
KERNEL void dequantise(const C* codes, std::size_t n, T unit, T* out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<T>(codes[i]) * unit;
}

template <class T, class C>
class Multiples : public Values<T> {
    const C* codes_;
    T unit_;

public:
    Multiples(View<const C> codes, T unit) : Values<T>(codes.n), codes_(codes.data), unit_(unit) {}
    void read(std::size_t begin, std::size_t end, T* out) const override {
        dispatch<dequantise<T, C>>(codes_ + begin, end - begin, unit_, out);
    }
};

void require_unit(double unit) {
    if (!(unit > 0 && unit < std::numeric_limits<double>::infinity()))
        throw InvalidArgument("unit must be a positive number, got " + py::str(py::float_(unit)).cast<std::string>());
}

template <class F>
void visit_codes(const py::array& array, F&& f) {
    visit<std::int8_t, std::int16_t, std::int32_t>(array, "codes", f);
}

template <class T, class C>
bool quantise(View<const T> x, double unit, std::int64_t first, const py::object& key, C* codes) {
    const T inverse = T{1} / static_cast<T>(unit);
    const bool stochastic = !key.is_none();
    const Key stream = stochastic ? key_of(key) : Key{};
    const std::uint64_t begin = first_of(first);
    std::atomic<bool> fits{true};
    py::gil_scoped_release release;
    parallel_parts(x.n, part_elements, [&](std::size_t, std::size_t from, std::size_t to) {
        constexpr auto nearest = &dispatch<quantise<T, C, false>, const T*, std::size_t, T, Key, std::uint64_t, C*>;
        constexpr auto random = &dispatch<quantise<T, C, true>, const T*, std::size_t, T, Key, std::uint64_t, C*>;
        const auto run = stochastic ? random : nearest;
        if (!run(x.data + from, to - from, inverse, stream, begin + from, codes + from)) fits = false;
    });
    return fits;
}

}  // namespace

template <class T>
Source<T> values_of_integers(std::size_t n, const py::array& codes, double unit) {
    require_unit(unit);
    Source<T> values;
    visit_codes(codes, [&](auto code) {
        using C = decltype(code);
        values = std::make_unique<Multiples<T, C>>(input<C>(codes, "codes", n), static_cast<T>(unit));
    });
    return values;
}

template Source<float> values_of_integers(std::size_t, const py::array&, double);
template Source<double> values_of_integers(std::size_t, const py::array&, double);

void bind_quantise(py::module_& m) {
    m.def("quantise", [](const py::array& x, double unit, std::int64_t first, const py::object& key, py::array codes,
                         const py::object&) {
        require_unit(unit);
        visit_real(x, "x", [&](auto zero) {
            visit_codes(codes, [&](auto code) {
                using T = decltype(zero);
                using C = decltype(code);
                const auto from = input<T>(x, "x");
                const auto to = output<C>(codes, "codes", from.n);
                if (!quantise<T, C>(from, unit, first, key, to.data))
                    throw InvalidArgument("codes must be at most " + std::to_string(std::numeric_limits<C>::max()) +
                                          " in magnitude: take a larger unit than " +
                                          py::str(py::float_(unit)).cast<std::string>());
            });
        });
    }, py::arg("x"), py::arg("unit"), py::arg("first"), py::arg("key").none(true), py::arg("codes"),
       py::arg("largest").none(true) = py::none(),
       "codes = floor(x * (1/unit) + uniform), or rounded to nearest even without a key.");

    m.def("dequantise", [](const py::array& codes, double unit, py::array out) {
        write_values(out, [&](auto zero, std::size_t n) {
            return values_of_integers<decltype(zero)>(n, codes, unit);
        });
    }, py::arg("codes"), py::arg("unit"), py::arg("out"), "out = codes * unit, both rounded to out's precision first.");
}
