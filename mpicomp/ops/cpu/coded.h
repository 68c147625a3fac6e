// Values that are read from codes block by block, where they are used: no pass over memory of their own.
#pragma once

#include <algorithm>
#include <memory>

#include "arrays.h"
#include "past_caches.h"
#include "pool.h"

// n values of float32 or float64.
class Coded {
public:
    const std::size_t n;
    py::object arguments;  // keeps the arrays of codes alive
    explicit Coded(std::size_t size) : n(size) {}
    virtual ~Coded() = default;
};

template <class T>
class Values : public Coded {
public:
    using Coded::Coded;
    // out = values [begin, end), begin a multiple of 8. Takes no interpreter lock.
    virtual void read(std::size_t begin, std::size_t end, T* out) const = 0;
};

template <class T>
using Source = std::unique_ptr<Values<T>>;

template <class T>
constexpr std::size_t coded_block = (std::size_t{1} << 14) / sizeof(T);  // values of which two blocks fit the L1 cache

// What the operations unpack_signs, unpack_levels, dequantise, unpack_natural and decode_natural read: n values.
template <class T>
Source<T> values_of_signs(std::size_t n, const py::array& packed, const py::array& bounds, const py::object& negative,
                          const py::array& positive);
template <class T>
Source<T> values_of_levels(std::size_t n, const py::array& packed, const py::array& bounds, const py::array& scales,
                           std::int64_t levels, std::int64_t width);
template <class T>
Source<T> values_of_integers(std::size_t n, const py::array& codes, double unit);
template <class T>
Source<T> values_of_powers(std::size_t n, const py::array& packed, std::int64_t top);
template <class T>
Source<T> values_of_message(std::size_t n, const py::array& message);

// Writes all values of make(T{}, n) into out.
template <class F>
void write_values(py::array& out, F&& make) {
    visit_real(out, "out", [&](auto zero) {
        using T = decltype(zero);
        const auto to = output<T>(out, "out");
        const Source<T> values = make(zero, to.n);
        py::gil_scoped_release release;
        parallel_parts(to.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
            write_result(to.data, to.n, begin, end, [&](std::size_t first, std::size_t last, T* ready) {
                values->read(first, last, ready);
            });
        });
    });
}
