// Streams of error-bounded codes: headers, then blocks; see oracle/bounded.py.
#include "bounded.h"

#include <pybind11/stl.h>

#include <vector>

#include "arrays.h"
#include "bind.h"

namespace {

using namespace bounded;

struct Written {
    std::size_t bytes = 0, escaped = 0;
    bool fits = true;
};

KERNEL std::size_t blocks_of(std::size_t n) { return (n + block - 1) / block; }

// Whether `nbytes` are exactly those of a stream.
template <class T>
KERNEL bool is_stream(const std::uint8_t* codes, std::size_t nbytes, std::size_t n) {
    const std::size_t count = blocks_of(n);
    if (nbytes < count) return false;
    std::size_t total = count;
    bool known = true;
    for (std::size_t b = 0; b < count; ++b) {
        total += sizes<T>.of[codes[b]];
        known &= (codes[b] & 63) < 63 || codes[b] == escaped;
    }
    if (count && codes[count - 1] == escaped) total -= (count * block - n) * sizeof(T);
    return known && total == nbytes;
}

template <class T>
struct Encode {
    // A block of values; returns the end of its bytes.
    template <int width>
    static KERNEL std::uint8_t* one(const T* values, std::size_t length, const Grid& grid, std::uint8_t* header,
                                    std::uint8_t* out) {
        alignas(64) Word<T> q[block];
        if (!quantise(values, grid, q)) {
            *header = escaped;
            std::memcpy(out, values, length * sizeof(T));
            return out + length * sizeof(T);
        }
        const Word<T> first = q[0];
        subtract_previous<width>(first, Word<T>{0}, q);
        return write<width, T>(first, q, header, out);
    }

    template <int width>
    static KERNEL void run(const T* x, std::size_t n, const Grid* grid, std::uint8_t* codes, Written* written) {
        std::uint8_t* out = codes + blocks_of(n);
        alignas(64) T last[block];
        for (std::size_t begin = 0; begin < n; begin += block) {
            const std::size_t length = std::min(block, n - begin);
            const T* values = x + begin;
            if (length < block) {
                std::memcpy(last, values, length * sizeof(T));
                std::fill(last + length, last + block, last[length - 1]);
                values = last;
            }
            std::uint8_t* header = codes + begin / block;
            out = one<width>(values, length, *grid, header, out);
            written->escaped += *header == escaped;
        }
        written->bytes = out - codes;
    }
};

template <int width, class T>
KERNEL void add_values(const std::uint8_t* headers, const std::uint8_t* const* from, std::size_t count, std::size_t n,
                       double step, std::uint8_t* out) {
    alignas(64) double total[block], more[block];
    alignas(64) T rounded[block];
    read_values<width, T>(headers[0], from[0], n, step, total);
    for (std::size_t s = 1; s < count; ++s) {
        read_values<width, T>(headers[s], from[s], n, step, more);
        for (std::size_t i = 0; i < block; ++i) total[i] += more[i];
    }
    for (std::size_t i = 0; i < block; ++i) rounded[i] = static_cast<T>(total[i]);
    std::memcpy(out, rounded, n * sizeof(T));
}

// Writes the sum of a block's integers; returns its end, or nullptr if its differences are too wide.
template <int width, class T>
KERNEL std::uint8_t* add_integers(const std::uint8_t* headers, const std::uint8_t* const* from, std::size_t count,
                                  bool constant, std::uint8_t* header, std::uint8_t* out) {
    Word<T> first = 0, second = 0;
    bool any_twice = false;
    for (std::size_t s = 0; s < count; ++s) {
        first += read_first<T>(headers[s], from[s]);
        any_twice |= is_twice<T>(headers[s]);
    }
    if (constant) {
        *header = static_cast<std::uint8_t>(size_of<T>(zigzag(first)));
        return write_first<T>(zigzag(first), *header, out);
    }
    alignas(64) Word<T> once[block], twice[block], codes[block];  // sums of differences, and of differences of these
    clear<width>(once);
    if (any_twice) clear<width>(twice);
    for (std::size_t s = 0; s < count; ++s) {
        if (!(headers[s] & 63)) continue;
        read_codes<width, T>(headers[s], from[s], codes);
        if (is_twice<T>(headers[s])) {
            second += read_second<T>(headers[s], from[s]);
            for (std::size_t i = 0; i < block; ++i) twice[i] += codes[i];
        } else {
            for (std::size_t i = 0; i < block; ++i) once[i] += codes[i];
        }
    }
    if (any_twice) {
        add_previous<width>(second, second, twice);
        for (std::size_t i = 0; i < block; ++i) once[i] += twice[i];
    }
    return write<width, T>(first, once, header, out);
}

template <class T>
struct Sum {
    template <int width>
    static KERNEL void run(const std::uint8_t* const* streams, std::size_t count, std::size_t n, double step,
                           std::uint8_t* codes, Written* written) {
        const std::size_t blocks = blocks_of(n);
        std::uint8_t* out = codes + blocks;
        std::vector<const std::uint8_t*> from(count);
        std::vector<std::uint8_t> headers(count);
        for (std::size_t s = 0; s < count; ++s) from[s] = streams[s] + blocks;
        for (std::size_t b = 0; b < blocks; ++b) {
            bool plain = false;
            std::uint8_t any = 0;
            const std::size_t length = std::min(block, n - b * block);
            for (std::size_t s = 0; s < count; ++s) {
                any |= headers[s] = streams[s][b];
                plain |= headers[s] == escaped;
            }
            if (plain) {
                codes[b] = escaped;
                add_values<width, T>(headers.data(), from.data(), count, length, step, out);
                out += length * sizeof(T);
                ++written->escaped;
            } else {
                out = add_integers<width, T>(headers.data(), from.data(), count, !(any & 63), codes + b, out);
                if (!out) {
                    written->fits = false;
                    return;
                }
            }
            for (std::size_t s = 0; s < count; ++s) from[s] += sizes<T>.of[headers[s]];
        }
        written->bytes = out - codes;
    }
};

template <class T>
struct Decode {
    static KERNEL void divide(const std::uint8_t* in, std::size_t n, double divisor, T* out) {
        std::memcpy(out, in, n * sizeof(T));
        for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<T>(out[i] / divisor);
    }

    template <int width>
    static KERNEL void scale(std::uint8_t header, const std::uint8_t* in, double step, double divisor, T* out) {
        alignas(64) Word<T> q[block];
        read_integers<width, T>(header, in, q);
        if (divisor == 1)
            for (std::size_t i = 0; i < block; ++i) out[i] = static_cast<T>(grid_integer<T>(q[i]) * step);
        else
            for (std::size_t i = 0; i < block; ++i) out[i] = static_cast<T>(grid_integer<T>(q[i]) * step / divisor);
    }

    template <int width>
    static KERNEL void run(const std::uint8_t* codes, std::size_t n, double step, double divisor, T* out) {
        const std::uint8_t* in = codes + blocks_of(n);
        alignas(64) T last[block];
        for (std::size_t begin = 0; begin < n; begin += block) {
            const std::size_t length = std::min(block, n - begin);
            const std::uint8_t header = codes[begin / block];
            T* to = length == block ? out + begin : last;
            if (header == escaped)
                divide(in, length, divisor, to);
            else if (header & 63)
                scale<width>(header, in, step, divisor, to);
            else
                std::fill(to, to + block, static_cast<T>(grid_integer<T>(read_first<T>(header, in)) * step / divisor));
            if (length < block) std::memcpy(out + begin, last, length * sizeof(T));
            in += sizes<T>.of[header];
        }
    }
};

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
            dispatch_by_width<Encode<T>>(from.data, from.n, &grid, to.data, &written);
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
                dispatch_by_width<Sum<T>>(from.data(), from.size(), static_cast<std::size_t>(n), step, to.data,
                                          &written);
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
            if (valid) dispatch_by_width<Decode<T>>(from.data, to.n, step, divisor, to.data);
        });
        return valid;
    }, py::arg("codes"), py::arg("step"), py::arg("divisor"), py::arg("out"),
       "out = the stream's values / divisor; returns whether codes are exactly a stream.");
}
