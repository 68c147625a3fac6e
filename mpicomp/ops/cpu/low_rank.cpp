// Low-rank compression: products with a matrix of few columns, and orthonormal columns.
#include <cmath>
#include <vector>

#include "arrays.h"
#include "bind.h"
#include "products.h"
#include "sums.h"

namespace {

// Rows [begin, begin + n) of q, each of `rank` elements, become `rank` columns of `padded` elements, zero at the end.
template <class T>
KERNEL void transpose(const T* q, std::size_t rank, std::size_t begin, std::size_t n, std::size_t padded, T* columns) {
    for (std::size_t c = 0; c < rank; ++c) {
        const T* from = q + begin * rank + c;
        T* to = columns + c * padded;
        for (std::size_t i = 0; i < n; ++i) to[i] = from[i * rank];
        std::fill(to + n, to + padded, T{0});
    }
}

template <class T>
struct TransposedRows {
    const T* q;
    std::size_t rank;
    KERNEL void operator()(std::size_t begin, std::size_t n, std::size_t padded, T* columns) const {
        transpose(q, rank, begin, n, padded, columns);
    }
};

// q = U^T p: every row of u, weighted, is added to the columns of q in the scratch array.
template <class T, class U>
KERNEL void project_back(U u, Shape shape, std::size_t first, std::size_t last, const T* p, T* scratch, T* q) {
    const std::size_t stride = shape.columns, rank = shape.rank, block = block_columns<T>(shape);
    for (std::size_t begin = first; begin < last; begin += block) {
        const std::size_t n = std::min(block, last - begin), padded = Line<T>::padded(n);
        std::fill(scratch, scratch + rank * padded, T{0});
        in_groups<4>(shape.rows, [&](std::size_t i, auto sources) KERNEL_LAMBDA {
            in_groups<4>(rank, [&](std::size_t c, auto targets) KERNEL_LAMBDA {
                const auto weights = [=](std::size_t a, std::size_t b) KERNEL_LAMBDA { return p[(i + b) * rank + c + a]; };
                weighted_sums<targets, sources, true>(scratch + c * padded, padded, u.from(i * stride + begin), stride,
                                                      weights, n);
            });
        });
        for (std::size_t c = 0; c < rank; ++c)
            for (std::size_t j = 0; j < n; ++j) q[(begin + j) * rank + c] = scratch[c * padded + j];
    }
}

// out = p q^T: the columns of q, weighted, are added up in four rows of out.
template <class T>
KERNEL void low_rank_product(const T* p, const T* q, Shape shape, T* scratch, T* out) {
    const std::size_t stride = shape.columns, rank = shape.rank, block = block_columns<T>(shape);
    for (std::size_t begin = 0; begin < shape.columns; begin += block) {
        const std::size_t n = std::min(block, shape.columns - begin), padded = Line<T>::padded(n);
        transpose(q, rank, begin, n, padded, scratch);
        in_groups<4>(shape.rows, [&](std::size_t i, auto targets) KERNEL_LAMBDA {
            T* to = out + i * stride + begin;
            in_groups<4>(rank, [&](std::size_t c, auto sources) KERNEL_LAMBDA {
                const auto weights = [=](std::size_t a, std::size_t b) KERNEL_LAMBDA { return p[(i + a) * rank + c + b]; };
                const Compensated<T, false> columns{nullptr, scratch + c * padded};
                if (c == 0)
                    weighted_sums<targets, sources, false>(to, stride, columns, padded, weights, n);
                else
                    weighted_sums<targets, sources, true>(to, stride, columns, padded, weights, n);
            });
        });
    }
}

// ---- orthonormal columns by Householder reflections, in double: column-major, as LAPACK's geqr2 and org2r do it

KERNEL double dot(const double* x, const double* y, std::size_t n) {
    return sum_of(n, [=](std::size_t i) KERNEL_LAMBDA { return x[i] * y[i]; });
}

// A factor above zero changes no direction: by a power of two so that the largest is about 1, no square overflows.
KERNEL void scale_to_one(double* x, std::size_t n) {
    Bits<double> largest = 0;
    for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, magnitude(x[i]));
    if (largest == 0 || largest >= Real<double>::infinity) return;
    double value;
    std::memcpy(&value, &largest, sizeof value);
    const double factor = std::ldexp(1.0, std::clamp(-std::ilogb(value), -1022, 1022));
    for (std::size_t i = 0; i < n; ++i) x[i] *= factor;
}

struct Reflection {
    double tau, sign;  // I - tau v v^T; the sign of the diagonal of R it leaves
};

// x becomes v, with v[0] = 1.
KERNEL Reflection reflect(double* x, std::size_t n) {
    scale_to_one(x, n);
    const double first = x[0], squares = dot(x + 1, x + 1, n - 1);
    x[0] = 1;
    if (squares == 0) return {0, first < 0 ? -1.0 : 1.0};
    const double beta = -std::copysign(std::sqrt(first * first + squares), first);
    const double factor = 1 / (first - beta);
    for (std::size_t i = 1; i < n; ++i) x[i] *= factor;
    return {(beta - first) / beta, beta < 0 ? -1.0 : 1.0};
}

KERNEL void reflect_by(Reflection reflection, const double* v, double* x, std::size_t n) {
    const double weight = reflection.tau * dot(v, x, n);
    for (std::size_t i = 0; i < n; ++i) x[i] -= weight * v[i];
}

// q: rank columns, the first ones of the product of all reflections, with signs that make the diagonal of R >= 0.
KERNEL void orthonormal_columns(double* a, std::size_t rows, std::size_t rank, Reflection* reflections, double* q) {
    for (std::size_t k = 0; k < rank; ++k) scale_to_one(a + k * rows, rows);
    for (std::size_t k = 0; k < rank; ++k) {
        double* v = a + k * rows + k;
        reflections[k] = reflect(v, rows - k);
        for (std::size_t c = k + 1; c < rank; ++c) reflect_by(reflections[k], v, a + c * rows + k, rows - k);
    }
    std::fill(q, q + rank * rows, 0.0);
    for (std::size_t k = 0; k < rank; ++k) q[k * rows + k] = reflections[k].sign;
    for (std::size_t k = rank; k-- > 0;)
        for (std::size_t c = k; c < rank; ++c)
            reflect_by(reflections[k], a + k * rows + k, q + c * rows + k, rows - k);
}

template <class T>
void orthogonalise(T* p, std::size_t rows, std::size_t rank) {
    std::vector<double> a(rows * rank), q(rows * rank);
    std::vector<Reflection> reflections(rank);
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t c = 0; c < rank; ++c) a[c * rows + i] = p[i * rank + c];
    dispatch<orthonormal_columns>(a.data(), rows, rank, reflections.data(), q.data());
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t c = 0; c < rank; ++c) p[i * rank + c] = static_cast<T>(q[c * rows + i]);
}

// ---- arguments

std::size_t columns_of(std::size_t n, std::int64_t rows, const std::string& name, const std::string& more = "") {
    if (rows < 1) throw InvalidArgument("rows must be at least 1, got " + std::to_string(rows));
    const std::size_t count = static_cast<std::size_t>(rows);
    if (n % count || (n == 0 && !more.empty()))
        throw InvalidArgument(name + " must be a matrix of " + std::to_string(rows) + " rows" + more + ", got " +
                              std::to_string(n) + " elements");
    return n / count;
}

std::size_t rank_of(std::size_t n, std::int64_t rows) {
    return columns_of(n, rows, "p", " with at least one column");
}

// How long q must be; what no integer holds is no array's length either.
std::size_t narrow_size(Shape shape) {
    std::size_t size;
    return __builtin_mul_overflow(shape.columns, shape.rank, &size) ? any_length - 1 : size;
}

Shape shape_of(std::size_t grad_size, std::size_t p_size, std::int64_t rows, const std::string& name = "grad") {
    const std::size_t rank = rank_of(p_size, rows);
    return {static_cast<std::size_t>(rows), columns_of(grad_size, rows, name), rank};
}

// run(first row, shape) for parts of a matrix.
template <class F>
void in_parts_of_rows(Shape shape, F&& run) {
    parallel_parts(shape.rows, rows_of_part(shape.columns), [&](std::size_t, std::size_t begin, std::size_t end) {
        run(begin, Shape{end - begin, shape.columns, shape.rank});
    });
}

constexpr std::size_t columns_of_part = 512;  // of a long matrix that is read by rows

std::size_t size_of(const py::array& array) { return static_cast<std::size_t>(array.size()); }

void bind_products(py::module_& m) {
    m.def("project_matrix", [](const py::object& memory, const py::array& grad, std::int64_t rows, const py::array& q,
                        py::array p) {
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            const Shape shape = shape_of(g.n, size_of(p), rows);
            const auto from = input<T>(q, "q", narrow_size(shape));
            const auto to = output<T>(p, "p");
            py::gil_scoped_release release;
            with_compensated(m, g.data, [&](auto u) {
                const TransposedRows<T> fill{from.data, shape.rank};
                in_parts_of_rows(shape, [&](std::size_t begin, Shape part) {
                    const auto scratch = scratch_for<T>(part);
                    dispatch_by_width<TimesNarrow<T, decltype(u), TransposedRows<T>>>(
                        u.from(begin * shape.columns), part, fill, scratch.data(), to.data + begin * shape.rank);
                });
            });
        });
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("rows"), py::arg("q"), py::arg("p"),
       "p = (memory + grad) q, as matrices.");

    m.def("project_back_matrix", [](const py::object& memory, const py::array& grad, std::int64_t rows, const py::array& p,
                             py::array q) {
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            const Shape shape = shape_of(g.n, size_of(p), rows);
            const auto from = input<T>(p, "p");
            const auto to = output<T>(q, "q", narrow_size(shape));
            py::gil_scoped_release release;
            with_compensated(m, g.data, [&](auto u) {
                const bool alone = g.n < 4 * part_elements || threads_in_use() == 1;
                const std::size_t columns = alone ? shape.columns : columns_of_part;
                parallel_parts(shape.columns, std::max<std::size_t>(1, columns), [&](std::size_t, std::size_t begin,
                                                                                     std::size_t end) {
                    const auto scratch = scratch_for<T>(shape);
                    dispatch<project_back<T, decltype(u)>>(u, shape, begin, end, from.data, scratch.data(), to.data);
                });
            });
        });
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("rows"), py::arg("p"), py::arg("q"),
       "q = (memory + grad)^T p, as matrices.");

    m.def("low_rank_product_matrix", [](const py::array& p, const py::array& q, std::int64_t rows, py::array out) {
        visit_real(p, "p", [&](auto zero) {
            using T = decltype(zero);
            const auto left = input<T>(p, "p");
            const auto to = output<T>(out, "out");
            const Shape shape = shape_of(to.n, left.n, rows, "out");
            const auto right = input<T>(q, "q", narrow_size(shape));
            py::gil_scoped_release release;
            in_parts_of_rows(shape, [&](std::size_t begin, Shape part) {
                const auto scratch = scratch_for<T>(part);
                dispatch<low_rank_product<T>>(left.data + begin * shape.rank, right.data, part, scratch.data(),
                                              to.data + begin * shape.columns);
            });
        });
    }, py::arg("p"), py::arg("q"), py::arg("rows"), py::arg("out"), "out = p q^T, as matrices.");
}

}  // namespace

void bind_low_rank(py::module_& m) {
    bind_products(m);
    m.def("orthogonalise_matrix", [](py::array p, std::int64_t rows) {
        visit_real(p, "p", [&](auto zero) {
            const auto matrix = output<decltype(zero)>(p, "p");
            const std::size_t rank = rank_of(matrix.n, rows);
            if (rank > static_cast<std::size_t>(rows))
                throw InvalidArgument("at most as many columns as rows (" + std::to_string(rows) +
                                      ") can be orthonormal, got " + std::to_string(rank));
            py::gil_scoped_release release;
            orthogonalise(matrix.data, static_cast<std::size_t>(rows), rank);
        });
    }, py::arg("p"), py::arg("rows"), "The columns of p become orthonormal, in place.");
}
