// Lists of arrays, such as a model's gradients: compared with those of the step before, copied into one vector and back.
//
// A step passes over the list several times. In Python each pass takes a tenth of a microsecond and more per array, which
// for short arrays is longer than the copies and messages.
#include <pybind11/stl.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "arrays.h"
#include "bind.h"
#include "indices.h"
#include "past_caches.h"
#include "pool.h"

namespace {

constexpr std::size_t long_copy = 8 << 20;  // bytes from which copies go past the caches, which could not keep them
constexpr std::size_t cleared_bytes = 32 << 10;  // cleared and filled while in the L1 cache
constexpr std::size_t copied_bytes_in_part = part_elements * sizeof(float);

const py::detail::PyArray_Proxy* facts_of(const py::handle& array) { return py::detail::array_proxy(array.ptr()); }

std::size_t elements(const py::handle& array) {
    const auto* proxy = facts_of(array);
    return std::accumulate(proxy->dimensions, proxy->dimensions + proxy->nd, std::size_t{1},
                           [](std::size_t n, py::ssize_t length) { return n * static_cast<std::size_t>(length); });
}

// Dtype, shape and flags of each array of a list, in order. They say nothing of addresses or values.
class ArrayFacts {
public:
    explicit ArrayFacts(const py::list& arrays) {
        for (const py::handle& array : arrays) {
            if (!is_array(array)) throw InvalidArgument("arrays must be of class numpy.ndarray");
            const auto* proxy = facts_of(array);
            known_.push_back({py::reinterpret_borrow<py::object>(proxy->descr),
                              {proxy->dimensions, proxy->dimensions + proxy->nd}});
        }
    }

    bool hold(const py::list& arrays, bool written) const {
        const int flags = written ? writable : readable;
        if (arrays.size() != known_.size()) return false;
        for (std::size_t i = 0; i < known_.size(); ++i) {
            const py::handle array = PyList_GET_ITEM(arrays.ptr(), static_cast<py::ssize_t>(i));
            if (!is_array(array)) return false;
            const auto* proxy = facts_of(array);
            const auto& [dtype, shape] = known_[i];
            if (proxy->descr != dtype.ptr() || (proxy->flags & flags) != flags ||
                !std::equal(shape.begin(), shape.end(), proxy->dimensions, proxy->dimensions + proxy->nd))
                return false;
        }
        return true;
    }

private:
    struct Known {
        py::object dtype;
        std::vector<py::ssize_t> shape;
    };
    std::vector<Known> known_;
};

// Whether each array, of any library, is the one that its weak reference is to, and still has its shape.
bool same_arrays(const py::list& refs, const py::list& shapes, const py::list& arrays) {
    static const py::handle name = PyUnicode_InternFromString("shape");
    if (arrays.size() != refs.size() || arrays.size() != shapes.size()) return false;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        const py::object array = arrays[i];
        if (!refs[i]().is(array)) return false;
        if (!py::getattr(array, name).equal(shapes[i])) return false;
    }
    return true;
}

// Whether all arrays with elements are views of one base, array i beginning starts[i] elements after array 0.
bool adjacent(const py::list& arrays, const std::vector<py::ssize_t>& starts) {
    if (arrays.size() != starts.size()) throw InvalidArgument("there must be a start for each array");
    const char* origin = nullptr;
    const PyObject* base = nullptr;
    for (std::size_t i = 0; i < starts.size(); ++i) {
        const py::handle array = arrays[i];
        if (!is_array(array)) return false;
        if (elements(array) == 0) continue;
        const auto* proxy = facts_of(array);
        const char* first = proxy->data - starts[i] * py::reinterpret_borrow<py::array>(array).itemsize();
        if (proxy->base == nullptr || (base != nullptr && (proxy->base != base || first != origin))) return false;
        base = proxy->base;
        origin = first;
    }
    return base != nullptr;
}

// Whether any of the arrays has memory in common with `vector`.
bool any_overlap(const py::list& arrays, const py::array& vector) {
    const char* begin = static_cast<const char*>(vector.data());
    const char* end = begin + vector.nbytes();
    return std::any_of(arrays.begin(), arrays.end(), [=](const py::handle& object) {
        if (!py::isinstance<py::array>(object)) return false;  // a NumPy scalar, or memory of a device
        const auto array = py::reinterpret_borrow<py::array>(object);
        const char* data = static_cast<const char*>(array.data());
        return data < end && begin < data + array.nbytes();
    });
}

// An array's memory: `begin` is its first byte in the vector.
struct Piece {
    char* data;
    std::size_t begin, nbytes;
};

// The arrays' memory; empty if they are not contiguous arrays of the vector's dtype, as long as the vector together.
std::vector<Piece> pieces_of(const py::list& arrays, const py::array& flat, std::size_t n, int flags) {
    if (!is_array(flat) || flat.ndim() != 1 || (flat.flags() & readable) != readable) return {};
    const std::size_t itemsize = flat.itemsize();
    std::vector<Piece> pieces;
    std::size_t at = 0;
    for (const py::handle& array : arrays) {
        if (!is_array(array)) return {};
        const auto* proxy = facts_of(array);
        if (proxy->descr != facts_of(flat)->descr || (proxy->flags & flags) != flags) return {};
        pieces.push_back({proxy->data, at * itemsize, elements(array) * itemsize});
        at += elements(array);
    }
    return at == n ? pieces : std::vector<Piece>{};
}

// Whether no two pieces have memory in common.
bool are_apart(std::vector<Piece> pieces) {
    std::sort(pieces.begin(), pieces.end(), [](const Piece& one, const Piece& other) { return one.data < other.data; });
    const char* end = nullptr;
    for (const auto& [data, begin, nbytes] : pieces) {
        if (nbytes != 0 && data < end) return false;
        if (nbytes != 0) end = data + nbytes;
    }
    return true;
}

// f(memory, first, nbytes) for what each piece has of the vector's bytes [begin, end); it begins at byte `first`.
template <class F>
void each_piece(const std::vector<Piece>& pieces, std::size_t begin, std::size_t end, F&& f) {
    auto piece = std::upper_bound(pieces.begin(), pieces.end(), begin, [](std::size_t byte, const Piece& one) {
        return byte < one.begin + one.nbytes;
    });
    for (; piece != pieces.end() && piece->begin < end; ++piece) {
        const std::size_t first = std::max(begin, piece->begin), last = std::min(end, piece->begin + piece->nbytes);
        if (first < last) f(piece->data + (first - piece->begin), first, last - first);
    }
}

bool pack_alike(const py::list& arrays, py::array flat) {
    const std::vector<Piece> pieces = pieces_of(arrays, flat, flat.size(), readable);
    if (pieces.empty() || !flat.writeable()) return false;
    char* to = static_cast<char*>(flat.mutable_data());
    const std::size_t total = flat.nbytes();
    py::gil_scoped_release release;
    parallel_parts(total, copied_bytes_in_part, [&](std::size_t, std::size_t begin, std::size_t end) {
        each_piece(pieces, begin, end, [&](const char* from, std::size_t first, std::size_t nbytes) {
            copy_bytes(to + first, from, nbytes, total >= long_copy);
        });
    });
    return true;
}

bool unpack_alike(const py::array& flat, const py::list& arrays) {
    const std::vector<Piece> pieces = pieces_of(arrays, flat, flat.size(), writable);
    if (pieces.empty()) return false;
    const char* from = static_cast<const char*>(flat.data());
    const std::size_t total = flat.nbytes();
    py::gil_scoped_release release;
    // Of memory that comes twice the last values are to stay.
    const bool apart = is_shared(total, copied_bytes_in_part) && are_apart(pieces);
    parallel_parts(total, apart ? copied_bytes_in_part : std::max<std::size_t>(1, total),
                   [&](std::size_t, std::size_t begin, std::size_t end) {
        each_piece(pieces, begin, end, [&](char* to, std::size_t first, std::size_t nbytes) {
            copy_bytes(to, from + first, nbytes, total >= long_copy);
        });
    });
    return true;
}

template <class T, class I>
void expand(const std::vector<Piece>& pieces, const I* indices, const T* values, std::size_t k) {
    std::size_t j = 0;
    for (const auto& [data, begin, nbytes] : pieces)
        for (std::size_t done = 0; done < nbytes; done += cleared_bytes) {
            const std::size_t first = (begin + done) / sizeof(T), count = std::min(cleared_bytes, nbytes - done) / sizeof(T);
            T* block = reinterpret_cast<T*>(data + done);
            std::fill_n(block, count, T{});
            for (; j < k && static_cast<std::size_t>(indices[j]) < first + count; ++j) block[indices[j] - first] = values[j];
        }
}

bool unpack_sparse_alike(const py::array& indices, const py::array& values, const py::list& arrays) {
    std::size_t n = 0;
    for (const py::handle& array : arrays) n += is_array(array) ? elements(array) : 0;
    const std::vector<Piece> pieces = pieces_of(arrays, values, n, writable);
    if (pieces.empty()) return false;
    visit_real(values, "values", [&](auto zero) {
        visit_index(indices, "indices", [&](auto index) {
            const auto at = input<decltype(index)>(indices, "indices");
            const auto v = input<decltype(zero)>(values, "values", at.n);
            require_in_range(at, n);
            require_ascending(at);
            py::gil_scoped_release release;
            expand(pieces, at.data, v.data, at.n);
        });
    });
    return true;
}

}  // namespace

void bind_array_lists(py::module_& m) {
    py::class_<ArrayFacts>(m, "ArrayFacts", "Dtype, shape and contiguity of each array of a list.")
        .def(py::init<const py::list&>(), py::arg("arrays"))
        .def("hold", &ArrayFacts::hold, py::arg("arrays"), py::arg("written") = false,
             "Whether other arrays have the same dtype objects and shapes, and are contiguous (and writable).");
    m.def("same_arrays", &same_arrays, py::arg("refs"), py::arg("shapes"), py::arg("arrays"),
          "Whether arrays are those of weak references, of the same shapes.");
    m.def("adjacent", &adjacent, py::arg("arrays"), py::arg("starts"),
          "Whether arrays are views of one base, each starts[i] elements after the first.");
    m.def("any_overlap", &any_overlap, py::arg("arrays"), py::arg("vector"),
          "Whether any of the contiguous arrays has memory in common with a contiguous vector.");
    m.def("pack_alike", &pack_alike, py::arg("arrays"), py::arg("flat"),
          "pack; false, and nothing done, unless all are contiguous arrays of one dtype, as long as flat.");
    m.def("unpack_alike", &unpack_alike, py::arg("flat"), py::arg("arrays"), "unpack, on the conditions of pack_alike.");
    m.def("unpack_sparse_alike", &unpack_sparse_alike, py::arg("indices"), py::arg("values"), py::arg("arrays"),
          "unpack_sparse, on the conditions of pack_alike.");
}
