// Uses of coded values that decode them on the way: their mean, and the update of a memory.
#include "coded.h"

#include <vector>

#include "bind.h"
#include "block_codes.h"
#include "isa.h"
#include "real.h"

namespace {

template <class T>
class Plain : public Values<T> {  // an array's own
    const T* data_;

public:
    explicit Plain(View<const T> x) : Values<T>(x.n), data_(x.data) {}
    void read(std::size_t begin, std::size_t end, T* out) const override {
        std::copy(data_ + begin, data_ + end, out);
    }
};

template <class T>
KERNEL void clear(T* x, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) x[i] = T{0};
}

template <class T>
KERNEL void add(T* total, const T* x, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) total[i] += x[i];
}

template <class T>
KERNEL void scale(const T* total, T factor, const T* plus, T* out, std::size_t n) {
    if (plus)
        for (std::size_t i = 0; i < n; ++i) out[i] = total[i] * factor + plus[i];
    else
        for (std::size_t i = 0; i < n; ++i) out[i] = total[i] * factor;
}

template <class T>
void mean(const std::vector<const Values<T>*>& coded, T factor, const T* plus, T* out, std::size_t first,
          std::size_t last) {
    alignas(64) T total[coded_block<T>], one[coded_block<T>];
    for (std::size_t begin = first; begin < last; begin += coded_block<T>) {
        const std::size_t end = std::min(last, begin + coded_block<T>);
        dispatch<clear<T>>(total, end - begin);
        for (const auto* values : coded) {
            values->read(begin, end, one);
            dispatch<add<T>>(total, one, end - begin);
        }
        dispatch<scale<T>>(total, factor, plus ? plus + begin : nullptr, out + begin, end - begin);
    }
}

template <class T>
KERNEL void keep_unsent(T* memory, const T* grad, const T* sent, std::size_t n, T beta) {
    for (std::size_t i = 0; i < n; ++i) {
        const T unsent = (memory[i] + grad[i]) - sent[i];
        memory[i] = (T{1} - beta) * memory[i] + beta * unsent;
    }
}

template <class T>
void update(T* memory, const T* grad, const Values<T>& sent, std::size_t first, std::size_t n, T beta) {
    alignas(64) T one[coded_block<T>];
    for (std::size_t begin = 0; begin < n; begin += coded_block<T>) {
        const std::size_t end = std::min(n, begin + coded_block<T>);
        sent.read(first + begin, first + end, one);
        dispatch<keep_unsent<T>>(memory + begin, grad + begin, one, end - begin, beta);
    }
}

template <class T>
Source<T> values_of(const std::string& operation, const py::dict& arguments, std::size_t n) {
    const auto array = [&](const char* name) { return arguments[name].cast<py::array>(); };
    const auto integer = [&](const char* name) { return arguments[name].cast<std::int64_t>(); };
    if (operation == "unpack_signs")
        return values_of_signs<T>(n, array("packed"), array("bounds"), arguments["negative"], array("positive"));
    if (operation == "unpack_levels")
        return values_of_levels<T>(n, array("packed"), array("bounds"), array("scales"), integer("levels"),
                                   integer("width"));
    if (operation == "dequantise") return values_of_integers<T>(n, array("codes"), arguments["unit"].cast<double>());
    if (operation == "unpack_natural") return values_of_powers<T>(n, array("packed"), integer("top"));
    if (operation == "decode_natural") return values_of_message<T>(n, array("message"));
    if (operation == "decode_blocks")
        return values_of_blocks<T>(n, array("codes"), arguments["format"].cast<std::string>());
    throw InvalidArgument("operation must be one that reads codes, got " + operation);
}

// Coded values, or an array of them; `own` owns what is made here.
template <class T>
const Values<T>& source_of(const py::handle& given, std::size_t least, Source<T>& own) {
    const Values<T>* values = nullptr;
    if (py::isinstance<py::array>(given)) {
        own = std::make_unique<Plain<T>>(input<T>(py::reinterpret_borrow<py::array>(given), "coded"));
        values = own.get();
    } else {
        values = dynamic_cast<const Values<T>*>(&given.cast<const Coded&>());
        if (!values) throw InvalidArgument("coded values must be of the dtype of the other arrays");
    }
    if (values->n < least)
        throw InvalidArgument("coded must have " + std::to_string(least) + " elements, got " +
                              std::to_string(values->n));
    return *values;
}

}  // namespace

void bind_coded(py::module_& m) {
    py::class_<Coded>(m, "Coded", "Values that are read from codes where they are used.")
        .def_property_readonly("size", [](const Coded& coded) { return coded.n; });

    m.def("coded", [](const std::string& operation, const py::dict& arguments, std::size_t n, const py::dtype& dtype) {
        std::unique_ptr<Coded> made;
        visit_real(py::array(dtype, std::vector<py::ssize_t>{0}), "dtype", [&](auto zero) {
            made = values_of<decltype(zero)>(operation, arguments, n);
        });
        made->arguments = arguments;
        return made;
    }, py::arg("operation"), py::arg("arguments"), py::arg("n"), py::arg("dtype"),
       "The n values that operation(**arguments, out=out) writes, to be read where they are used.");

    m.def("coded_mean", [](const py::iterable& coded, double factor, const py::object& plus, py::array out) {
        visit_real(out, "out", [&](auto zero) {
            using T = decltype(zero);
            const auto to = output<T>(out, "out");
            const T* more = optional_input<T>(plus, "plus", to.n);
            const auto given = py::list(coded);
            std::vector<Source<T>> own(given.size());
            std::vector<const Values<T>*> values;
            for (std::size_t i = 0; i < given.size(); ++i) values.push_back(&source_of<T>(given[i], to.n, own[i]));
            py::gil_scoped_release release;
            parallel_parts(to.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
                mean<T>(values, static_cast<T>(factor), more, to.data, begin, end);
            });
        });
    }, py::arg("coded"), py::arg("factor"), py::arg("plus").none(true), py::arg("out"),
       "out = (0 + all values, in order) * factor + plus.");

    m.def("coded_update", [](py::array memory, const py::array& grad, const py::object& sent, std::size_t first,
                             double beta) {
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const auto m = output<T>(memory, "memory", g.n);
            if (first % 8) throw InvalidArgument("first must be a multiple of 8, got " + std::to_string(first));
            Source<T> own;
            const Values<T>& values = source_of<T>(sent, first + g.n, own);
            if (m.data < g.data + g.n && g.data < m.data + m.n)
                throw BufferRefused("memory and grad must not overlap");
            py::gil_scoped_release release;
            parallel_parts(g.n, part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
                update<T>(m.data + begin, g.data + begin, values, first + begin, end - begin, static_cast<T>(beta));
            });
        });
    }, py::arg("memory"), py::arg("grad"), py::arg("sent"), py::arg("first"), py::arg("beta"),
       "dense_update with the elements of sent from first on.");
}
