// Block codes: a scale and 8 or 4 bits per element in blocks of 256; see oracle/block_codes.py.
#include "block_codes.h"

#include <cmath>
#include <limits>

#include "philox.h"
#include "real.h"

namespace {

constexpr std::size_t scaled_block = 256, scale_bytes = 4;
static_assert(random_block % scaled_block == 0 && part_elements % scaled_block == 0);

template <class T>
constexpr int fraction_bits = std::numeric_limits<T>::digits - 1;
template <class T>
constexpr int bias = std::numeric_limits<T>::max_exponent - 1;

// The whole number nearest to y, or that below it, for |y| < 2^22: adding `magic` leaves it in the low bits of the sum.
template <class T, bool down>
KERNEL Bits<T> whole_of(T y) {
    constexpr T magic = T{3} * static_cast<T>(std::int64_t{1} << (fraction_bits<T> - 1));
    const T sum = y + magic;
    const Bits<T> nearest = bits_of(sum) - bits_of(magic);
    if constexpr (!down) return nearest;
    return nearest - static_cast<Bits<T>>(sum - magic > y);
}

template <class T, bool stochastic>
KERNEL T shifted(T y, const std::uint32_t* words, std::size_t i) {
    if constexpr (stochastic) return y + static_cast<T>(uniform_of(words[i]));
    return y;
}

// Formats: codes of v = x / scale, a byte each, and their bytes on the wire.

template <int largest>
struct Whole {
    static constexpr int top = largest;

    template <class T, bool stochastic>
    static KERNEL std::uint8_t code(T v, const std::uint32_t* words, std::size_t i) {
        Bits<T> whole = whole_of<T, stochastic>(shifted<T, stochastic>(v, words, i));
        if constexpr (stochastic) whole = std::max<Bits<T>>(-top, std::min<Bits<T>>(whole, top));
        return static_cast<std::uint8_t>(whole);
    }
};

struct Int8 : Whole<127> {
    static constexpr std::size_t bytes(std::size_t n) { return n; }

    static KERNEL void pack(const std::uint8_t* codes, std::size_t n, std::uint8_t* out) { std::memcpy(out, codes, n); }

    template <class T>
    static KERNEL void decode(const std::uint8_t* packed, std::size_t n, T scale, T* out) {
        for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<T>(static_cast<std::int8_t>(packed[i])) * scale;
    }
};

struct Int4 : Whole<7> {
    static constexpr std::size_t bytes(std::size_t n) { return n / 2 + n % 2; }

    // `codes` is 0 behind the last one.
    static KERNEL void pack(const std::uint8_t* codes, std::size_t n, std::uint8_t* out) {
        const std::size_t half = bytes(n);
        for (std::size_t i = 0; i < half; ++i)
            out[i] = static_cast<std::uint8_t>((codes[i] & 15) | codes[half + i] << 4);
    }

    template <class T>
    static KERNEL void decode(const std::uint8_t* packed, std::size_t n, T scale, T* out) {
        const std::size_t half = bytes(n);
        for (std::size_t i = 0; i < half; ++i) out[i] = static_cast<T>(((packed[i] & 15) ^ 8) - 8) * scale;
        for (std::size_t i = half; i < n; ++i) out[i] = static_cast<T>(((packed[i - half] >> 4) ^ 8) - 8) * scale;
    }
};

struct Fp8 {
    static constexpr int top = 448;
    static constexpr std::size_t bytes(std::size_t n) { return n; }

    // |v| is counted in steps of its exponent, which has 8 of them; the step behind the last is the next exponent's
    // first one.
    template <class T, bool stochastic>
    static KERNEL std::uint8_t code(T v, const std::uint32_t* words, std::size_t i) {
        constexpr Bits<T> one = Bits<T>{1} << fraction_bits<T>, least = (bias<T> - 6) * one;
        constexpr Bits<T> largest_code = 0x7e;
        const Bits<T> size = bits_of(v) & Real<T>::magnitude;
        const Bits<T> exponent = std::max(size & Real<T>::infinity, least);
        const T steps = real_of<T>(size) * real_of<T>((bias<T> + 3) * one - exponent + bias<T> * one);
        const Bits<T> whole = whole_of<T, stochastic>(shifted<T, stochastic>(steps, words, i));
        const Bits<T> code = ((exponent - least) >> (fraction_bits<T> - 3)) + whole;
        return static_cast<std::uint8_t>(std::min(code, largest_code) | (bits_of(v) < 0 ? 0x80 : 0));
    }

    static KERNEL void pack(const std::uint8_t* codes, std::size_t n, std::uint8_t* out) { std::memcpy(out, codes, n); }

    // Numbers of exponent 0 have no leading 1: it is taken away again, so that no arithmetic is on subnormal numbers.
    template <class T>
    static KERNEL void decode(const std::uint8_t* packed, std::size_t n, T scale, T* out) {
        constexpr std::int32_t rebias = 120 << 23;
        for (std::size_t i = 0; i < n; ++i) {
            const std::int32_t size = packed[i] & 0x7f;
            const bool subnormal = size < 8;
            const std::int32_t one = static_cast<std::int32_t>(subnormal) << 23;
            const float magnitude = real_of<float>((size << 20) + rebias + one);
            const float value = magnitude - choose(subnormal, 0x1p-6f, 0.0f);
            const auto sign = static_cast<std::int32_t>(static_cast<std::uint32_t>(packed[i] & 0x80) << 24);
            const float with_sign = real_of<float>(bits_of(value) | sign);
            out[i] = static_cast<T>(with_sign) * scale;
        }
    }
};

template <class Format>
constexpr std::size_t nbytes(std::size_t n) {
    return part_count(n, scaled_block) * scale_bytes + Format::bytes(n);  // of whole blocks, but the last
}

template <class T>
KERNEL Bits<T> largest_magnitude(const T* x, std::size_t n) {
    Bits<T> largest = 0;
    for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, bits_of(x[i]) & Real<T>::magnitude);
    return largest;
}

// The upper half of a scale in float64.
template <class T, class Format>
KERNEL std::uint32_t scale_of(Bits<T> largest) {
    if (largest >= Real<T>::infinity) return 0x7ff80000;
    constexpr double smallest = std::numeric_limits<T>::min();
    const double scale = std::max(real_of<T>(largest) / static_cast<double>(Format::top), smallest);
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(bits_of(scale)) >> 32);
}

template <class T>
KERNEL T value_of_scale(std::uint32_t scale) {
    return static_cast<T>(real_of<double>(static_cast<std::int64_t>(static_cast<std::uint64_t>(scale) << 32)));
}

template <class T, class Format, bool stochastic>
KERNEL void encode_block(const T* x, std::size_t n, const std::uint32_t* words, std::uint8_t* out) {
    alignas(64) std::uint8_t codes[scaled_block + 1];
    const Bits<T> largest = largest_magnitude(x, n);
    const std::uint32_t scale = scale_of<T, Format>(largest);
    std::memcpy(out, &scale, scale_bytes);
    if (largest >= Real<T>::infinity) {
        std::memset(out + scale_bytes, 0, Format::bytes(n));
        return;
    }
    const T inverse = T{1} / value_of_scale<T>(scale);
    for (std::size_t i = 0; i < n; ++i) codes[i] = Format::template code<T, stochastic>(x[i] * inverse, words, i);
    codes[n] = 0;
    Format::pack(codes, n, out + scale_bytes);
}

template <class T, class Format, bool stochastic>
KERNEL void encode(const T* x, std::size_t from, std::size_t to, Key key, std::uint64_t first, std::uint8_t* out) {
    RandomBlock random;
    for (std::size_t begin = from; begin < to; begin += random_block) {
        const std::size_t length = std::min(random_block, to - begin);
        const std::uint32_t* words = stochastic ? random.fill(key, first + begin, length) : nullptr;
        for (std::size_t at = 0; at < length; at += scaled_block) {
            const std::size_t n = std::min(scaled_block, length - at);
            std::uint8_t* codes = out + nbytes<Format>(begin + at);
            const std::uint32_t* own = stochastic ? words + at : nullptr;
            if (n == scaled_block)  // a length that the compiler knows
                encode_block<T, Format, stochastic>(x + begin + at, scaled_block, own, codes);
            else
                encode_block<T, Format, stochastic>(x + begin + at, n, own, codes);
        }
    }
}

template <class T, class Format>
KERNEL void decode_block(const std::uint8_t* codes, std::size_t n, T* out) {
    std::uint32_t scale;
    std::memcpy(&scale, codes, scale_bytes);
    if (n == scaled_block)
        Format::decode(codes + scale_bytes, scaled_block, value_of_scale<T>(scale), out);
    else
        Format::decode(codes + scale_bytes, n, value_of_scale<T>(scale), out);
}

// Values [begin, end) of n.
template <class T, class Format>
KERNEL void decode(const std::uint8_t* codes, std::size_t n, std::size_t begin, std::size_t end, T* out) {
    alignas(64) T whole[scaled_block];
    for (std::size_t at = begin; at < end;) {
        const std::size_t start = at / scaled_block * scaled_block, length = std::min(scaled_block, n - start);
        const std::size_t stop = std::min(end, start + length);
        const bool is_whole = stop - at == length;
        decode_block<T, Format>(codes + nbytes<Format>(start), length, is_whole ? out + (at - begin) : whole);
        if (!is_whole) std::copy(whole + (at - start), whole + (stop - start), out + (at - begin));
        at = stop;
    }
}

template <class T, class Format>
class Blocks : public Values<T> {
    const std::uint8_t* codes_;

public:
    explicit Blocks(std::size_t n, const std::uint8_t* codes) : Values<T>(n), codes_(codes) {}
    void read(std::size_t begin, std::size_t end, T* out) const override {
        dispatch<decode<T, Format>>(codes_, this->n, begin, end, out);
    }
};

template <class F>
void with_format(const std::string& format, F&& f) {
    if (format == "int8")
        f(Int8{});
    else if (format == "int4")
        f(Int4{});
    else if (format == "fp8")
        f(Fp8{});
    else
        throw InvalidArgument("format must be one of int8, int4, fp8, got '" + format + "'");
}

template <class T, class Format, bool stochastic>
void encode_in_parts(View<const T> x, Key key, std::uint64_t first, std::uint8_t* codes) {
    py::gil_scoped_release release;
    parallel_parts(x.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
        dispatch<encode<T, Format, stochastic>>(x.data, begin, end, key, first, codes);
    });
}

}  // namespace

template <class T>
Source<T> values_of_blocks(std::size_t n, const py::array& codes, const std::string& format) {
    Source<T> values;
    with_format(format, [&](auto kind) {
        using Format = decltype(kind);
        const auto from = input<std::uint8_t>(codes, "codes", nbytes<Format>(n));
        values = std::make_unique<Blocks<T, Format>>(n, from.data);
    });
    return values;
}

template Source<float> values_of_blocks(std::size_t, const py::array&, const std::string&);
template Source<double> values_of_blocks(std::size_t, const py::array&, const std::string&);

void bind_block_codes(py::module_& m) {
    m.def("encode_blocks", [](const py::array& x, const std::string& format, py::array codes, const py::object& key,
                              std::int64_t first) {
        visit_real(x, "x", [&](auto zero) {
            with_format(format, [&](auto kind) {
                using T = decltype(zero);
                using Format = decltype(kind);
                const auto from = input<T>(x, "x");
                const auto to = output<std::uint8_t>(codes, "codes", nbytes<Format>(from.n));
                const std::uint64_t number = first_of(first);
                if (key.is_none())
                    encode_in_parts<T, Format, false>(from, Key{}, number, to.data);
                else
                    encode_in_parts<T, Format, true>(from, key_of(key), number, to.data);
            });
        });
    }, py::arg("x"), py::arg("format"), py::arg("codes"), py::arg("key").none(true) = py::none(),
       py::arg("first") = 0, "codes = a scale and codes per block of x; rounded stochastically with a key.");

    m.def("decode_blocks", [](const py::array& codes, const std::string& format, py::array out) {
        write_values(out, [&](auto zero, std::size_t n) {
            return values_of_blocks<decltype(zero)>(n, codes, format);
        });
    }, py::arg("codes"), py::arg("format"), py::arg("out"), "out = code * scale.");
}
