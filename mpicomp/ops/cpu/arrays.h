// The door between Python and the kernels: NumPy arrays become checked pointers, or a clear error.
#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "errors.h"

namespace py = pybind11;

template <class T>
struct View {
    T* data = nullptr;
    std::size_t n = 0;
};

constexpr std::size_t any_length = std::numeric_limits<std::size_t>::max();

// n above which indices need 64 bits; tests lower it.
inline std::int64_t& index_limit() {
    static std::int64_t limit = std::numeric_limits<std::int32_t>::max();
    return limit;
}

// No subclass: it may mean something else by its memory.
inline bool is_array(const py::handle& object) {
    return Py_TYPE(object.ptr()) == py::detail::npy_api::get().PyArray_Type_;
}

constexpr int readable = py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
constexpr int writable = readable | py::detail::npy_api::NPY_ARRAY_WRITEABLE_;

inline std::string dtype_name(const py::array& array) { return py::str(array.dtype()); }

template <class T>
bool holds(const py::array& array) {
    constexpr char kind = std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u';
    const py::dtype dtype = array.dtype();
    return dtype.kind() == kind && dtype.itemsize() == sizeof(T) && dtype.byteorder() != '>';
}

template <class T>
std::string type_name() {
    const char* kind = std::is_floating_point_v<T> ? "float" : std::is_signed_v<T> ? "int" : "uint";
    return kind + std::to_string(8 * sizeof(T));
}

// Calls f(T{}) with the first T of Types that the array holds.
template <class... Types, class F>
void visit(const py::array& array, const std::string& name, F&& f) {
    const bool known = ((holds<Types>(array) && (f(Types{}), true)) || ...);
    if (known) return;
    std::string choices;
    ((choices += (choices.empty() ? "" : ", ") + type_name<Types>()), ...);
    throw InvalidArgument(name + " must be of dtype " + choices + ", got " + dtype_name(array));
}

template <class F>
void visit_real(const py::array& array, const std::string& name, F&& f) {
    visit<float, double>(array, name, f);
}

template <class F>
void visit_index(const py::array& array, const std::string& name, F&& f) {
    visit<std::int32_t, std::int64_t>(array, name, f);
}

template <class T>
void check(const py::array& array, const std::string& name, std::size_t length) {
    if (!holds<T>(array))
        throw InvalidArgument(name + " must be of dtype " + type_name<T>() + ", got " + dtype_name(array));
    if (array.ndim() != 1)
        throw InvalidArgument(name + " must have 1 dimension, got " + std::to_string(array.ndim()));
    if (length != any_length && static_cast<std::size_t>(array.size()) != length)
        throw InvalidArgument(name + " must have " + std::to_string(length) + " elements, got " +
                              std::to_string(array.size()));
    if (!(array.flags() & py::array::c_style))
        throw BufferRefused(name + " must be contiguous, got a strided array: pass numpy.ascontiguousarray(...)");
    if (!(array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_))
        throw BufferRefused(name + " must be aligned to its element size: pass a copy");
}

template <class T>
View<const T> input(const py::array& array, const std::string& name, std::size_t length = any_length) {
    check<T>(array, name, length);
    return {static_cast<const T*>(array.data()), static_cast<std::size_t>(array.size())};
}

template <class T>
View<T> output(py::array& array, const std::string& name, std::size_t length = any_length) {
    check<T>(array, name, length);
    if (!array.writeable()) throw BufferRefused(name + " must be writable, got a read-only array");
    return {static_cast<T*>(array.mutable_data()), static_cast<std::size_t>(array.size())};
}

// `memory` may be None, which means zero everywhere: the null pointer.
template <class T>
const T* optional_input(const py::object& object, const std::string& name, std::size_t length) {
    if (object.is_none()) return nullptr;
    if (!py::isinstance<py::array>(object)) throw InvalidArgument(name + " must be a NumPy array or None");
    return input<T>(py::reinterpret_borrow<py::array>(object), name, length).data;
}
