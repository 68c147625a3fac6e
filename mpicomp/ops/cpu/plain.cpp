// What `Comm.Allreduce` asks first in every call: may MPI have these two arrays as they are? Compiled, because for short
// messages the answer must take less time than the message.
#include <cstring>

#include "arrays.h"
#include "bind.h"

namespace {

using Api = py::detail::npy_api;

constexpr int usable = Api::NPY_ARRAY_C_CONTIGUOUS_ | Api::NPY_ARRAY_ALIGNED_;
constexpr int writable = usable | Api::NPY_ARRAY_WRITEABLE_;

bool is_array(const py::handle& object) {  // no subclass: it may mean something else by its memory
    return Py_TYPE(object.ptr()) == Api::get().PyArray_Type_;
}

bool has(const py::array& array, int flags) { return (array.flags() & flags) == flags; }

// Float32, float64 or an integer, in the machine's own byte order.
bool covered(const py::dtype& dtype) {
    return std::strchr("fdbBhHiIlLqQ", dtype.char_()) != nullptr && dtype.byteorder() != '>';
}

// Bytes of `receive` if MPI may have both arrays at once (`send` is None for in place); -1 where there is something to
// refuse, to convert, or to look at more closely.
py::ssize_t plain_nbytes(const py::object& send, const py::object& receive) {
    if (!is_array(receive)) return -1;
    const auto into = py::reinterpret_borrow<py::array>(receive);
    const py::dtype dtype = into.dtype();
    if (!has(into, writable) || !covered(dtype)) return -1;
    const py::ssize_t nbytes = into.nbytes();
    if (send.is_none()) return nbytes;
    if (!is_array(send)) return -1;
    const auto from = py::reinterpret_borrow<py::array>(send);
    if (!has(from, usable) || from.dtype().ptr() != dtype.ptr() || from.nbytes() != nbytes) return -1;
    const char* a = static_cast<const char*>(from.data());
    const char* b = static_cast<const char*>(into.data());
    return a + nbytes <= b || b + nbytes <= a ? nbytes : -1;
}

}  // namespace

void bind_plain(py::module_& m) {
    m.def("plain_nbytes", &plain_nbytes, py::arg("send"), py::arg("receive"),
          "Bytes of receive if MPI may have both arrays as they are (send None: in place), else -1.");
}
