// Linear sketches: the count sketch and its estimates, random projections of rows, and the elements of rows.
#include <algorithm>

#include "bind.h"
#include "collect.h"
#include "indices.h"
#include "products.h"

namespace {

constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;
constexpr std::size_t most_rows = 15;

KERNEL std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

// Where row `row` of the sketch begins to count what it hashes.
KERNEL std::uint64_t offset_of(std::uint64_t seed, std::size_t row) { return (seed + row + 1) * golden; }

struct Sketch {
    std::size_t rows, columns;
    std::uint64_t seed;
};

constexpr std::size_t hashed_block = 256;  // elements hashed at a time, a row of the sketch after the other
constexpr std::size_t cells_ahead = 24;   // elements whose cells are fetched ahead: about one memory latency

// Columns and signs (as bits to be flipped) of elements [begin, begin + n) in one row of the sketch.
template <class T>
KERNEL void hash(Sketch sketch, std::size_t row, std::size_t begin, std::size_t n, std::uint64_t* column, Bits<T>* flip) {
    const std::uint64_t first = begin + offset_of(sketch.seed, row), last_column = sketch.columns - 1;
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t h = mix(first + i);
        column[i] = h & last_column;
        flip[i] = static_cast<Bits<T>>((h >> 63) << (8 * sizeof(T) - 1));
    }
}

template <class T>
KERNEL void add_to_cells(const std::uint64_t* column, const T* values, std::size_t n, T* cells) {
    for (std::size_t i = 0; i < n; ++i) {
        __builtin_prefetch(cells + column[i + cells_ahead], 1);
        cells[column[i]] += values[i];
    }
}

template <class T, class U>
KERNEL void count_sketch(U u, std::size_t n, Sketch sketch, std::size_t first, std::size_t last, T* table) {
    std::uint64_t column[hashed_block + cells_ahead] = {};
    Bits<T> flip[hashed_block];
    T from[hashed_block], values[hashed_block];
    std::fill(table + first * sketch.columns, table + last * sketch.columns, T{0});
    for (std::size_t begin = 0; begin < n; begin += hashed_block) {
        const std::size_t length = std::min(hashed_block, n - begin);
        for (std::size_t i = 0; i < length; ++i) from[i] = u[begin + i];
        for (std::size_t row = first; row < last; ++row) {
            hash<T>(sketch, row, begin, length, column, flip);
            for (std::size_t i = 0; i < length; ++i) values[i] = real_of<T>(bits_of(from[i]) ^ flip[i]);
            add_to_cells(column, values, length, table + row * sketch.columns);
        }
    }
}

// ---- estimates: medians of keys, integers that are ordered as numbers are and all NaN alike above infinity

template <class T>
KERNEL Bits<T> key_of(T value) {
    const Bits<T> bits = bits_of(value), upright = bits < 0 ? bits ^ Real<T>::magnitude : bits;
    return magnitude(value) > Real<T>::infinity ? Real<T>::infinity + 1 : upright;
}

template <class T>
KERNEL T value_of(Bits<T> key) {
    return real_of<T>(key < 0 ? key ^ Real<T>::magnitude : key);
}

// Sorts keys[0..rows) lane by lane, as far as needed: after each pass one more of the largest is in its place.
template <class B>
KERNEL void sort_upper_half(B (*keys)[hashed_block], std::size_t rows, std::size_t n) {
    for (std::size_t settled = 0; settled <= rows / 2; ++settled)
        for (std::size_t row = 0; row + 1 < rows - settled; ++row)
            for (std::size_t i = 0; i < n; ++i) {
                const B a = keys[row][i], b = keys[row + 1][i];
                keys[row][i] = std::min(a, b);
                keys[row + 1][i] = std::max(a, b);
            }
}

template <class T>
KERNEL void median(Bits<T> (*keys)[hashed_block], std::size_t rows, std::size_t n, T* out) {
    sort_upper_half(keys, rows, n);
    const auto *lower = keys[(rows - 1) / 2], *upper = keys[rows / 2];
    if (rows % 2)
        for (std::size_t i = 0; i < n; ++i) out[i] = value_of<T>(upper[i]) + T{0};  // zero is +0
    else
        for (std::size_t i = 0; i < n; ++i) out[i] = (value_of<T>(lower[i]) + value_of<T>(upper[i])) * T{0.5} + T{0};
}

template <class T>
KERNEL void sketch_estimate(const T* table, Sketch sketch, T* out, std::size_t first, std::size_t last) {
    std::uint64_t column[hashed_block + cells_ahead] = {};
    Bits<T> flip[hashed_block], keys[most_rows][hashed_block];
    for (std::size_t begin = first; begin < last; begin += hashed_block) {
        const std::size_t length = std::min(hashed_block, last - begin);
        for (std::size_t row = 0; row < sketch.rows; ++row) {
            const T* cells = table + row * sketch.columns;
            T votes[hashed_block];
            hash<T>(sketch, row, begin, length, column, flip);
            for (std::size_t i = 0; i < length; ++i) {
                __builtin_prefetch(cells + column[i + cells_ahead]);
                votes[i] = cells[column[i]];
            }
            for (std::size_t i = 0; i < length; ++i) keys[row][i] = key_of(real_of<T>(bits_of(votes[i]) ^ flip[i]));
        }
        median(keys, sketch.rows, length, out + begin);
    }
}

// ---- rows

// Fills the columns that rows are multiplied with: column c holds 1 or -1 by bit c of the hash.
template <class T>
struct RandomSigns {
    std::uint64_t seed;
    std::size_t width;
    KERNEL void operator()(std::size_t begin, std::size_t n, std::size_t padded, T* columns) const {
        std::uint64_t hashes[hashed_block];
        for (std::size_t done = 0; done < n; done += hashed_block) {
            const std::size_t length = std::min(hashed_block, n - done);
            const std::uint64_t first = begin + done + offset_of(seed, 0);
            for (std::size_t i = 0; i < length; ++i) hashes[i] = mix(first + i);
            for (std::size_t c = 0; c < width; ++c)
                for (std::size_t i = 0; i < length; ++i)
                    columns[c * padded + done + i] = hashes[i] >> c & 1 ? T{-1} : T{1};
        }
        for (std::size_t c = 0; c < width; ++c) std::fill(columns + c * padded + n, columns + (c + 1) * padded, T{0});
    }
};

template <class T, class U>
void project_rows(U u, std::size_t n, std::size_t row, RandomSigns<T> signs, T* out) {
    using Kernel = TimesNarrow<T, U, RandomSigns<T>>;
    const std::size_t whole = n / row;
    const Shape rest{1, n % row, signs.width};
    parallel_parts(whole, rows_of_part(row), [&](std::size_t, std::size_t begin, std::size_t end) {
        const Shape part{end - begin, row, signs.width};
        const auto scratch = scratch_for<T>(part);
        dispatch_by_width<Kernel>(u.from(begin * row), part, signs, scratch.data(), out + begin * signs.width);
    });
    const auto scratch = scratch_for<T>(rest);
    if (rest.columns) dispatch_by_width<Kernel>(u.from(whole * row), rest, signs, scratch.data(), out + whole * signs.width);
}

template <class I, class J>
KERNEL void expand_rows(const J* rows, std::size_t k, std::size_t row, std::size_t n, I* indices) {
    for (std::size_t j = 0; j < k; ++j) {
        const std::size_t begin = static_cast<std::size_t>(rows[j]) * row, length = std::min(row, n - begin);
        for (std::size_t i = 0; i < length; ++i) indices[i] = static_cast<I>(begin + i);
        indices += length;
    }
}

// ---- arguments

std::size_t count_rows(std::size_t n, std::size_t row) { return n / row + (n % row != 0); }

// Any integer, modulo 2^64.
std::uint64_t seed_of(const py::object& seed) {
    const std::uint64_t value = PyLong_AsUnsignedLongLongMask(seed.ptr());
    if (PyErr_Occurred()) throw py::error_already_set();
    return value;
}

Sketch sketch_of(std::int64_t rows, std::int64_t columns, const py::object& seed) {
    if (rows < 1 || rows > static_cast<std::int64_t>(most_rows) || columns < 1 || columns & (columns - 1))
        throw InvalidArgument("a sketch must have 1 to 15 rows and 2^m columns, got " + std::to_string(rows) + " and " +
                              std::to_string(columns));
    return {static_cast<std::size_t>(rows), static_cast<std::size_t>(columns), seed_of(seed)};
}

// Compared by division: rows * columns may be more than an integer holds.
template <class T>
void require_table(View<T> table, Sketch sketch) {
    if (table.n % sketch.rows || table.n / sketch.rows != sketch.columns)
        throw InvalidArgument("table must have " + std::to_string(sketch.rows) + " x " + std::to_string(sketch.columns) +
                              " elements, got " + std::to_string(table.n));
}

template <class I, class J>
py::array expanded(View<const J> rows, std::size_t row, std::size_t n) {
    const std::size_t last = count_rows(n, row) - 1, k = rows.n;
    Buffer<I> indices;
    {
        py::gil_scoped_release release;
        const bool is_short = k && static_cast<std::size_t>(rows.data[k - 1]) == last;
        indices.size = k * row - (is_short ? count_rows(n, row) * row - n : 0);
        indices.reserve(indices.size);
        dispatch<expand_rows<I, J>>(rows.data, k, row, n, indices.data());
    }
    return std::move(indices).to_numpy();
}

void bind_rows(py::module_& m) {
    m.def("project_rows_in_span", [](const py::object& memory, const py::array& grad, std::int64_t row, std::int64_t width,
                             const py::object& seed, py::array out) {
        if (width < 1 || width > 64 || row < 1)
            throw InvalidArgument("row must be at least 1 and width in [1, 64], got " + std::to_string(row) + " and " +
                                  std::to_string(width));
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const RandomSigns<T> signs{seed_of(seed), static_cast<std::size_t>(width)};
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            const std::size_t length = static_cast<std::size_t>(row);
            const auto to = output<T>(out, "out", count_rows(g.n, length) * signs.width);
            py::gil_scoped_release release;
            with_compensated(m, g.data, [&](auto u) { project_rows<T>(u, g.n, length, signs, to.data); });
        });
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("row"), py::arg("width"), py::arg("seed"), py::arg("out"),
       "out = rows of (memory + grad) times random signs.");

    m.def("expand_rows_in_span", [](const py::array& rows, std::int64_t row, std::int64_t n) {
        if (row < 1 || n < 0)
            throw InvalidArgument("row must be at least 1 and n at least 0, got " + std::to_string(row) + " and " +
                                  std::to_string(n));
        const std::size_t length = static_cast<std::size_t>(row), size = static_cast<std::size_t>(n);
        py::array result;
        visit_index(rows, "rows", [&](auto zero) {
            using J = decltype(zero);
            const auto from = input<J>(rows, "rows");
            require_in_range(from, count_rows(size, length), "rows");
            require_ascending(from, "rows");
            result = with_index(size, [&](auto index) { return expanded<decltype(index)>(from, length, size); });
        });
        return result;
    }, py::arg("rows"), py::arg("row"), py::arg("n"), "Ascending indices of all elements of the given rows.");
}

}  // namespace

void bind_sketch(py::module_& m) {
    bind_rows(m);
    m.def("count_sketch", [](const py::object& memory, const py::array& grad, std::int64_t rows, std::int64_t columns,
                             const py::object& seed, py::array table) {
        const Sketch sketch = sketch_of(rows, columns, seed);
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            const auto cells = output<T>(table, "table");
            require_table(cells, sketch);
            py::gil_scoped_release release;
            with_compensated(m, g.data, [&](auto u) {
                const auto threads = static_cast<std::size_t>(g.n < part_elements ? 1 : threads_in_use());
                const std::size_t share = part_count(sketch.rows, std::min(threads, sketch.rows));  // rows of a thread
                parallel_parts(sketch.rows, share, [&](std::size_t, std::size_t first, std::size_t last) {
                    dispatch<count_sketch<T, decltype(u)>>(u, g.n, sketch, first, last, cells.data);
                });
            });
        });
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("rows"), py::arg("columns"), py::arg("seed"),
       py::arg("table"), "table = the count sketch of memory + grad.");

    m.def("sketch_estimate", [](const py::array& table, std::int64_t rows, std::int64_t columns, const py::object& seed,
                                py::array out) {
        const Sketch sketch = sketch_of(rows, columns, seed);
        visit_real(table, "table", [&](auto zero) {
            using T = decltype(zero);
            const auto cells = input<T>(table, "table");
            require_table(cells, sketch);
            const auto to = output<T>(out, "out");
            py::gil_scoped_release release;
            parallel_parts(to.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
                dispatch<sketch_estimate<T>>(cells.data, sketch, to.data, begin, end);
            });
        });
    }, py::arg("table"), py::arg("rows"), py::arg("columns"), py::arg("seed"), py::arg("out"),
       "out[i] = the median over rows of what the table says element i is.");
}
