// Index lists as arguments: an array, or an IndexList (mpicomp/ops/index_lists.py), whose array is taken.
#pragma once

#include "arrays.h"

struct Indices {
    py::array array;
    operator const py::array&() const { return array; }
};

inline std::vector<py::array> arrays_of(const std::vector<Indices>& lists) {
    return {lists.begin(), lists.end()};
}

namespace pybind11::detail {

template <>
struct type_caster<Indices> {
    PYBIND11_TYPE_CASTER(Indices, const_name("numpy.ndarray"));

    bool load(handle given, bool) {
        if (isinstance<array>(given)) {
            value.array = reinterpret_borrow<array>(given);
            return true;
        }
        const object held = getattr(given, "array", none());
        if (!isinstance<array>(held)) return false;
        value.array = reinterpret_borrow<array>(held);
        return true;
    }
};

}  // namespace pybind11::detail
