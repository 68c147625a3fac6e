// What `Comm.Allreduce` asks first in every call: may MPI have these two arrays as they are, and was there a call like it
// before? Then MPI is called from here. Compiled, because for short messages all this must take less time than the
// message.
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <unordered_map>

#include "arrays.h"
#include "bind.h"

namespace {

constexpr std::size_t kept = 64;  // calls remembered for the watchdog

bool has(const py::array& array, int flags) { return (array.flags() & flags) == flags; }

// Float32, float64 or an integer of NumPy's own, in the machine's byte order: other packages' dtypes may have the same
// letters.
bool covered(const py::dtype& dtype) {
    constexpr int own_types = 24;  // NPY_NTYPES_LEGACY
    return dtype.num() < own_types && std::strchr("fdbBhHiIlLqQ", dtype.char_()) != nullptr && dtype.byteorder() != '>';
}

// Bytes of `receive` if MPI may have both arrays at once (`send` is `in_place`, or an array); -1 where there is something
// to refuse, to convert, or to look at more closely.
py::ssize_t plain_nbytes(const py::handle& send, const py::handle& receive, const py::handle& in_place) {
    if (!is_array(receive)) return -1;
    const auto into = py::reinterpret_borrow<py::array>(receive);
    const py::dtype dtype = into.dtype();
    if (!has(into, writable) || !covered(dtype)) return -1;
    const py::ssize_t nbytes = into.nbytes();
    if (send.is(in_place)) return nbytes;
    if (!is_array(send)) return -1;
    const auto from = py::reinterpret_borrow<py::array>(send);
    if (!has(from, readable) || from.dtype().ptr() != dtype.ptr() || from.nbytes() != nbytes) return -1;
    const char* a = static_cast<const char*>(from.data());
    const char* b = static_cast<const char*>(into.data());
    return a + nbytes <= b || b + nbytes <= a ? nbytes : -1;
}

double monotonic() {  // the clock of Python's time.monotonic
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct CallShape {
    py::ssize_t nbytes;
    PyObject* dtype;
    PyObject* op;
    bool operator==(const CallShape& other) const {
        return nbytes == other.nbytes && dtype == other.dtype && op == other.op;
    }
};

struct Hash {
    std::size_t operator()(const CallShape& shape) const {
        const std::hash<const void*> of_pointer;
        return of_pointer(shape.dtype) * 31 + of_pointer(shape.op) * 7 + static_cast<std::size_t>(shape.nbytes);
    }
};

// The all-reduces of one communicator that need no more than a look.
class PlainCalls {
public:
    std::uint64_t calls = 0;        // all-reduces so far, plain or not
    std::int64_t mask = 0;          // the ranks compare a call whose number & mask is 0
    py::ssize_t limit = -1;         // bytes up to which `auto` means MPI's own call
    std::uint64_t number = 0;       // collectives of the communicator so far, where they are logged
    std::uint64_t bytes_sent = 0;   // least bytes that each of `size` ranks sends in them, see allreduce/cost.py

    PlainCalls(py::object native, py::object in_place, std::uint64_t size, bool logged)
        : native_(std::move(native)), in_place_(std::move(in_place)), size_(size), logged_(logged) {}

    // MPI's all-reduce of this call, after `comm._compare_plain` if its turn to be compared has come; false, and nothing
    // done, where the call is to take the long way.
    bool run(const py::handle& comm, const py::handle& send, const py::handle& receive, const py::handle& op) {
        const py::ssize_t nbytes = plain_nbytes(send, receive, in_place_);
        if (nbytes < 0 || nbytes > limit) return false;
        const auto known = shapes_.find({nbytes, dtype_of(receive), op.ptr()});
        if (known == shapes_.end()) return false;
        const bool due = (++calls & static_cast<std::uint64_t>(mask)) == 0;
        if (logged_) ring_[ringed_++ % kept] = {++number, monotonic(), known->second.shape};
        const Flag going(going_, logged_);
        if (due) {
            const Flag comparing(comparing_, true);
            comm.attr("_compare_plain")(py::object(known->second.text));
        }
        bytes_sent += 2 * (size_ - 1) * static_cast<std::uint64_t>(nbytes) / size_;
        call(comm, send, receive, op);
        return true;
    }

    // A call that took the long way went well: the next one like it may be plain. `describe(op, receive)` gives the text
    // that ranks compare.
    void learn(const py::handle& send, const py::handle& receive, const py::object& op, const py::function& describe) {
        const py::ssize_t nbytes = plain_nbytes(send, receive, in_place_);
        if (nbytes < 0 || nbytes > limit) return;
        const auto dtype = py::reinterpret_borrow<py::object>(dtype_of(receive));
        const CallShape shape{nbytes, dtype.ptr(), op.ptr()};  // what they point to is kept alive by the tuple
        if (shapes_.count(shape) == 0) shapes_[shape] = {py::make_tuple(nbytes, dtype, op), describe(op, receive)};
    }

    void forget() { shapes_.clear(); }

    // (number, when it began, (bytes, dtype, op)) of the last plain calls, oldest first.
    py::list latest() const {
        py::list found;
        for (std::uint64_t i = ringed_ > kept ? ringed_ - kept : 0; i < ringed_; ++i) found.append(entry(i));
        return found;
    }

    // Whether ranks are comparing the plain call that goes on.
    bool comparing() const { return comparing_; }

    // The plain call that goes on, or None.
    py::object going() const { return going_ ? py::object(entry(ringed_ - 1)) : py::object(py::none()); }

private:
    struct Entry {
        std::uint64_t number = 0;
        double begun = 0;
        py::object shape;
    };
    struct Known {
        py::object shape, text;
    };
    struct Flag {  // is down again also where MPI's call raises
        bool& flag;
        Flag(bool& which, bool up) : flag(which) { flag = up; }
        ~Flag() { flag = false; }
    };

    static PyObject* dtype_of(const py::handle& array) {
        return py::detail::array_proxy(array.ptr())->descr;
    }

    void call(const py::handle& comm, const py::handle& send, const py::handle& receive, const py::handle& op) const {
        std::array<PyObject*, 4> arguments{comm.ptr(), send.ptr(), receive.ptr(), op.ptr()};
        PyObject* nothing = PyObject_Vectorcall(native_.ptr(), arguments.data(), arguments.size(), nullptr);
        if (nothing == nullptr) throw py::error_already_set();
        Py_DECREF(nothing);
    }

    py::tuple entry(std::uint64_t i) const {
        const Entry& one = ring_[i % kept];
        return py::make_tuple(one.number, one.begun, one.shape);
    }

    py::object native_, in_place_;
    std::uint64_t size_;
    bool logged_;
    std::unordered_map<CallShape, Known, Hash> shapes_;
    std::array<Entry, kept> ring_;
    std::uint64_t ringed_ = 0;
    bool going_ = false, comparing_ = false;
};

}  // namespace

void bind_plain(py::module_& m) {
    m.def("plain_nbytes", [](const py::object& send, const py::object& receive) {
        return plain_nbytes(send, receive, py::none());
    }, py::arg("send"), py::arg("receive"),
          "Bytes of receive if MPI may have both arrays as they are (send None: in place), else -1.");
    py::class_<PlainCalls>(m, "PlainCalls", "The all-reduces of one communicator that need no more than a look.")
        .def(py::init<py::object, py::object, std::uint64_t, bool>(), py::arg("native"), py::arg("in_place"),
             py::arg("size") = 1, py::arg("logged") = false)
        .def_readwrite("calls", &PlainCalls::calls)
        .def_readwrite("mask", &PlainCalls::mask)
        .def_readwrite("limit", &PlainCalls::limit)
        .def_readwrite("number", &PlainCalls::number)
        .def_readonly("bytes_sent", &PlainCalls::bytes_sent)
        .def("run", &PlainCalls::run)
        .def("learn", &PlainCalls::learn)
        .def("forget", &PlainCalls::forget)
        .def("latest", &PlainCalls::latest)
        .def_property_readonly("comparing", &PlainCalls::comparing)
        .def_property_readonly("going", &PlainCalls::going);
}
