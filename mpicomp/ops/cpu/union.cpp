// The union of index lists, through one bit per element, and the sums of the values that belong to them.
#include <pybind11/stl.h>

#include <numeric>
#include <vector>

#include "arrays.h"
#include "bind.h"
#include "indices.h"
#include "isa.h"
#include "kept_memory.h"
#include "pool.h"

namespace {

using Flags = std::uint64_t;
constexpr std::size_t bits = 64, wrong = any_length;

template <class I>
using Lists = std::vector<View<const I>>;

constexpr std::size_t words_in_part = 1 << 12;

// How many of k indices ascend within [0, n), where only the filling n follows them, if any may; else `wrong`.
template <class I>
std::size_t own_length(const I* indices, std::size_t k, std::int64_t n, bool filled) {
    while (filled && k && indices[k - 1] == n) --k;
    const bool inside = k == 0 || (indices[0] >= 0 && indices[k - 1] < n);
    return inside && ascends_throughout(indices, k) ? k : wrong;
}

template <class I>
KERNEL void mark(Flags* words, const I* indices, std::size_t k) {
    for (std::size_t j = 0; j < k; ++j) {
        const auto i = static_cast<std::size_t>(indices[j]);
        words[i / bits] |= Flags{1} << (i % bits);
    }
}

KERNEL std::size_t count_marks(const Flags* words, std::size_t begin, std::size_t end) {
    std::size_t count = 0;
    for (std::size_t w = begin; w < end; ++w) count += __builtin_popcountll(words[w]);
    return count;
}

// Writes to `indices` from place `next` on. before, if it is wanted: of each word, how many bits are set in front of
// it.
template <bool wanted, class I>
KERNEL void list(const Flags* words, std::size_t begin, std::size_t end, std::size_t next, I* indices, I* before) {
    for (std::size_t w = begin; w < end; ++w) {
        if (wanted) before[w] = static_cast<I>(next);
        for (Flags word = words[w]; word; word &= word - 1)
            indices[next++] = static_cast<I>(w * bits + __builtin_ctzll(word));
    }
}

template <class T, class I>
KERNEL void add_at_rank(const Flags* words, const I* before, const I* indices, std::size_t k, const T* values, T* sums) {
    for (std::size_t j = 0; j < k; ++j) {
        const auto i = static_cast<std::size_t>(indices[j]);
        const Flags below = words[i / bits] & ((Flags{1} << (i % bits)) - 1);
        sums[before[i / bits] + __builtin_popcountll(below)] += values[j];
    }
}

template <class I>
Lists<I> checked(const std::vector<py::array>& lists, std::int64_t n, bool filled) {
    Lists<I> views;
    for (const auto& one : lists) {
        auto view = input<I>(one, "lists");
        view.n = own_length(view.data, view.n, n, filled);
        if (view.n == wrong)
            throw InvalidArgument("lists must ascend within [0, " + std::to_string(n) + ")" +
                                  (filled ? " and be filled up at their ends" : ""));
        views.push_back(view);
    }
    return views;
}

std::size_t together(const std::vector<py::array>& arrays) {
    std::size_t total = 0;
    for (const auto& one : arrays) total += static_cast<std::size_t>(one.size());
    return total;
}

// The bits of all lists, and of each part of the words how many are set in front of it; in the end, how many in all.
struct Marks {
    std::size_t size;
    Kept<Flags> words;
    std::vector<std::size_t> before;

    explicit Marks(std::size_t n)
        : size((n + bits - 1) / bits), words(size), before(part_count(size, words_in_part) + 1) {}
};

template <class I>
View<const I> within(View<const I> list, std::size_t begin, std::size_t end) {
    const std::size_t first = below(list, begin * bits);
    return {list.data + first, below(list, end * bits) - first};
}

template <class I>
Marks marked(const Lists<I>& lists, std::int64_t n) {
    Marks marks(static_cast<std::size_t>(n));
    Flags* const words = marks.words.data();
    parallel_parts(marks.size, words_in_part, [&](std::size_t part, std::size_t begin, std::size_t end) {
        std::fill(words + begin, words + end, 0);
        for (const auto& whole : lists) {
            const auto own = within(whole, begin, end);
            dispatch<mark<I>>(words, own.data, own.n);
        }
        marks.before[part + 1] = dispatch<count_marks>(static_cast<const Flags*>(words), begin, end);
    });
    std::partial_sum(marks.before.begin(), marks.before.end(), marks.before.begin());
    return marks;
}

template <class I>
std::size_t list_union(const Lists<I>& lists, std::int64_t n, I* indices) {
    const Marks marks = marked(lists, n);
    parallel_parts(marks.size, words_in_part, [&](std::size_t part, std::size_t begin, std::size_t end) {
        const Flags* words = marks.words.data();
        dispatch<list<false, I>>(words, begin, end, marks.before[part], indices, static_cast<I*>(nullptr));
    });
    return marks.before.back();
}

template <class T, class I>
std::size_t add_lists(const Lists<I>& lists, const std::vector<const T*>& values, std::int64_t n, I* indices, T* sums) {
    const Marks marks = marked(lists, n);
    const Kept<I> before(marks.size);
    parallel_parts(marks.size, words_in_part, [&](std::size_t part, std::size_t begin, std::size_t end) {
        const Flags* words = marks.words.data();
        dispatch<list<true, I>>(words, begin, end, marks.before[part], indices, before.data());
        std::fill(sums + marks.before[part], sums + marks.before[part + 1], T{0});
        for (std::size_t l = 0; l < lists.size(); ++l) {
            const auto own = within(lists[l], begin, end);
            dispatch<add_at_rank<T, I>>(words, static_cast<const I*>(before.data()), own.data, own.n,
                                        values[l] + (own.data - lists[l].data), sums);
        }
    });
    return marks.before.back();
}

}  // namespace

void bind_union(py::module_& m) {
    m.def("union_of", [](const std::vector<py::array>& lists, std::int64_t n, py::array out) {
        std::size_t total = 0;
        visit_index(out, "out", [&](auto zero) {
            using I = decltype(zero);
            const auto views = checked<I>(lists, n, false);
            const auto to = output<I>(out, "out", together(lists));
            py::gil_scoped_release release;
            total = list_union(views, n, to.data);
        });
        return total;
    }, py::arg("lists"), py::arg("n"), py::arg("out"),
       "Write the ascending union of index lists to the front of out; returns its length.");

    const auto own_length_of = [](const py::array& indices, std::int64_t n, bool filled) {
        std::size_t found = wrong;
        visit_index(indices, "indices", [&](auto zero) {
            const auto list = input<decltype(zero)>(indices, "indices");
            found = own_length(list.data, list.n, n, filled);
        });
        return found;
    };
    m.def("ascends", [=](const py::array& indices, std::int64_t n) { return own_length_of(indices, n, false) != wrong; },
          py::arg("indices"), py::arg("n"), "Whether indices ascend within [0, n), none twice.");
    m.def("filled_length", [=](const py::array& indices, std::int64_t n) {
        const std::size_t found = own_length_of(indices, n, true);
        return found == wrong ? py::ssize_t{-1} : static_cast<py::ssize_t>(found);
    }, py::arg("indices"), py::arg("n"),
       "Number of indices that ascend within [0, n), none twice, if only the filling n follows them; else -1.");

    m.def("sums_of", [](const std::vector<py::array>& lists, const std::vector<py::array>& values, std::int64_t n,
                        bool filled, py::array out, py::array sums) {
        std::size_t total = 0;
        visit_index(out, "out", [&](auto index) {
            visit_real(sums, "sums", [&](auto zero) {
                using I = decltype(index);
                using T = decltype(zero);
                const std::size_t longest = together(lists);
                const auto to = output<I>(out, "out", longest);
                const auto add = output<T>(sums, "sums", longest);
                if (values.size() != lists.size())
                    throw InvalidArgument("values must be as many as lists, " + std::to_string(lists.size()) + ", got " +
                                          std::to_string(values.size()));
                std::vector<const T*> from;
                for (std::size_t l = 0; l < lists.size(); ++l)
                    from.push_back(input<T>(values[l], "values", static_cast<std::size_t>(lists[l].size())).data);
                const auto views = checked<I>(lists, n, filled);
                py::gil_scoped_release release;
                total = add_lists<T, I>(views, from, n, to.data, add.data);
            });
        });
        return total;
    }, py::arg("lists"), py::arg("values"), py::arg("n"), py::arg("filled"), py::arg("out"), py::arg("sums"),
       "Write the ascending union of index lists, and the sums of their values, to the fronts of out and sums.");
}
