// The union of index lists, through one bit an element.
#include <pybind11/stl.h>

#include <vector>

#include "arrays.h"
#include "bind.h"
#include "indices.h"
#include "isa.h"

namespace {

using Word = std::uint64_t;
constexpr std::size_t bits = 64;

template <class I>
KERNEL std::size_t mark(Word* words, const I* indices, std::size_t k) {
    std::size_t fresh = 0;
    for (std::size_t j = 0; j < k; ++j) {
        const std::size_t i = indices[j];
        const Word bit = Word{1} << (i % bits);
        fresh += (words[i / bits] & bit) == 0;
        words[i / bits] |= bit;
    }
    return fresh;
}

template <class I>
KERNEL void list(const Word* words, std::size_t count, I* indices) {
    for (std::size_t w = 0; w < count; ++w)
        for (Word word = words[w]; word; word &= word - 1)
            *indices++ = static_cast<I>(w * bits + __builtin_ctzll(word));
}

}  // namespace

void bind_union(py::module_& m) {
    m.def("union_of", [](const std::vector<py::array>& lists, std::int64_t n, py::array out) {
        std::size_t total = 0;
        visit_index(out, "out", [&](auto zero) {
            using I = decltype(zero);
            std::vector<View<const I>> views;
            for (const auto& one : lists) {
                views.push_back(input<I>(one, "lists"));
                require_in_range(views.back(), static_cast<std::size_t>(n));
            }
            std::size_t longest = 0;
            for (const auto& view : views) longest += view.n;
            const auto to = output<I>(out, "out", longest);
            py::gil_scoped_release release;
            std::vector<Word> words((static_cast<std::size_t>(n) + bits - 1) / bits);
            for (const auto& view : views) total += dispatch<mark<I>>(words.data(), view.data, view.n);
            dispatch<list<I>>(static_cast<const Word*>(words.data()), words.size(), to.data);
        });
        return total;
    }, py::arg("lists"), py::arg("n"), py::arg("out"),
       "Write the ascending union of index lists to the front of out; returns its length.");
}
