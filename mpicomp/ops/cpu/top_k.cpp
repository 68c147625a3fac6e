// Exact top-k: the k largest |memory + grad|, the lowest index first among equals.
//
// A sample guesses a floor that a little more than k elements reach; one pass collects them, and the k-th
// largest is found among these few. Where the guess fails (too few reach it, or far too many, as in a vector of
// mostly equal values) it is found among all elements of a short vector; of a long one, a radix select finds the
// exact k-th magnitude in 2 (float32) or 4 (float64) passes, and one more pass collects. All give the same answer;
// only the time differs.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "bind.h"
#include "collect.h"

namespace {

constexpr std::size_t line = 16;  // neighbours share a cache line, so sample them together
// Of a line in so many, one is looked at, up to so many: a larger sample lets fewer candidates pass, but to find its own
// k-th largest takes as long an element as to find theirs.
constexpr std::size_t lines_a_sample = 16, most_lines = 1024;
constexpr std::size_t spare_candidates = 1 << 18;

// A magnitude that more than k elements are likely to reach: three standard deviations on the safe side.
template <class U, class B>
KERNEL void guess_floor(U u, std::size_t n, std::size_t k, std::vector<B>* sample, B* floor) {
    *floor = 0;
    const std::size_t sample_lines = std::min(most_lines, n / (lines_a_sample * line)), sample_size = sample_lines * line;
    const double expected = static_cast<double>(sample_size) * k / n;
    const auto rank = static_cast<std::size_t>(expected + 3 * std::sqrt(expected) + 8);
    if (rank >= sample_size / 2) return;
    sample->resize(sample_size);
    for (std::size_t j = 0; j < sample_lines; ++j) {
        const auto at = u.from(j * (n / sample_lines));
        for (std::size_t i = 0; i < line; ++i) (*sample)[j * line + i] = magnitude(at[i]);
    }
    std::nth_element(sample->begin(), sample->begin() + rank, sample->end(), std::greater<B>());
    *floor = (*sample)[rank];
}

constexpr int digit_bits = 16;

// Counts the next digit of every magnitude that begins with `prefix`.
template <class U, class B>
KERNEL void count_digits(U u, std::size_t n, int shift, B prefix, std::uint64_t* counts) {
    constexpr B mask = (B{1} << digit_bits) - 1;
    for (std::size_t i = 0; i < n; ++i) {
        const B key = magnitude(u[i]) >> shift;
        if ((key >> digit_bits) == prefix) ++counts[key & mask];
    }
}

// What to take: everything above `key`, and the first `ties` elements equal to it.
template <class B>
struct Cut {
    B key;
    std::size_t ties;
};

template <class U, class B>
Cut<B> radix_select(U u, std::size_t n, std::size_t k) {
    Cut<B> cut{0, k};
    std::vector<std::uint64_t> counts(std::size_t{1} << digit_bits);
    for (int shift = static_cast<int>(8 * sizeof(B)) - digit_bits; shift >= 0; shift -= digit_bits) {
        std::fill(counts.begin(), counts.end(), 0);
        dispatch<count_digits<U, B>>(u, n, shift, cut.key, counts.data());
        std::size_t digit = counts.size() - 1;
        for (; counts[digit] < cut.ties; --digit) cut.ties -= counts[digit];
        cut.key = (cut.key << digit_bits) | static_cast<B>(digit);
    }
    return cut;
}

template <class B>
Cut<B> select_among(const Buffer<B>& keys, std::size_t k) {
    std::vector<B> copy(keys.data(), keys.data() + keys.size);
    std::nth_element(copy.begin(), copy.begin() + (k - 1), copy.end(), std::greater<B>());
    const B key = copy[k - 1];
    const auto above = std::count_if(copy.begin(), copy.begin() + k, [key](B other) { return other > key; });
    return {key, k - static_cast<std::size_t>(above)};
}

// Keeps the candidates that the cut admits, in place and in order.
template <class I, class B>
void apply(Cut<B> cut, Selection<I, B>* found) {
    std::size_t kept = 0;
    for (std::size_t j = 0; j < found->indices.size; ++j) {
        const B key = found->keys.data()[j];
        if (key < cut.key || (key == cut.key && cut.ties == 0)) continue;
        if (key == cut.key) --cut.ties;
        found->indices.data()[kept++] = found->indices.data()[j];
    }
    found->indices.size = kept;
}

template <class Test, class I, class U, class B>
Selection<I, B> collected(U u, std::size_t n, Test test, std::size_t limit) {
    Selection<I, B> found;
    dispatch<collect<true, U, Test, I, B>>(u, n, test, limit, &found);
    return found;
}

// The slow way, which never holds more than about 2 k candidates: those above the cut, and the first ties.
template <class I, class B, class U>
void select_exactly(U u, std::size_t n, std::size_t k, Buffer<I>* indices) {
    const Cut<B> cut = radix_select<U, B>(u, n, k);
    const auto above = collected<Above<B>, I, U, B>(u, n, {cut.key}, any_length).indices;
    const auto equal = collected<Equal<B>, I, U, B>(u, n, {cut.key}, cut.ties).indices;
    indices->reserve(k);
    indices->size = k;
    std::merge(above.data(), above.data() + above.size, equal.data(), equal.data() + cut.ties, indices->data());
}

template <class B, class I, class U>
void top_k(U u, std::size_t n, std::size_t k, Buffer<I>* indices) {
    if (k == 0) return;
    B floor;
    std::vector<B> sample;
    dispatch<guess_floor<U, B>>(u, n, k, &sample, &floor);
    const std::size_t limit = 2 * k + spare_candidates;
    auto found = collected<AtLeast<B>, I, U, B>(u, n, {floor}, limit);
    if (found.indices.size < k && n < limit) found = collected<AtLeast<B>, I, U, B>(u, n, {B{0}}, limit);
    if (found.indices.size < k || found.indices.size >= limit) return select_exactly<I, B>(u, n, k, indices);
    apply(select_among(found.keys, k), &found);
    *indices = std::move(found.indices);
}

}  // namespace

void bind_top_k(py::module_& m) {
    m.def("top_k_in_span", [](const py::object& memory, const py::array& grad, std::int64_t k) {
        py::array result;
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            if (k < 0 || static_cast<std::size_t>(k) > g.n)
                throw InvalidArgument("k must be in [0, " + std::to_string(g.n) + "], got " + std::to_string(k));
            result = with_index(g.n, [&](auto index) -> py::array {
                Buffer<decltype(index)> found;
                {
                    py::gil_scoped_release release;
                    with_compensated(m, g.data, [&](auto u) { top_k<Bits<T>>(u, g.n, static_cast<std::size_t>(k), &found); });
                }
                return std::move(found).to_numpy();
            });
        });
        return result;
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("k"),
       "Ascending indices of the k largest |memory + grad|; the lowest index wins among equals, NaN is largest.");
}
