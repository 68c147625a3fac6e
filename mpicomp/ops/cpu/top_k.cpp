// Exact top-k: the k largest |memory + grad|, the lowest index first among equals.
//
// A sample guesses a floor that a little more than k elements reach; one pass collects them, and the k-th
// largest is found among these few. Where the guess fails (too few reach it, or far too many, as in a vector of
// mostly equal values) it is found among all elements of a short vector; of a long one, a radix select finds the
// exact k-th magnitude in 2 (float32) or 4 (float64) passes, and one more pass collects. All give the same answer;
// only the time differs.
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "bind.h"
#include "collect.h"

namespace {

constexpr std::size_t line = 16;  // neighbours share a cache line, so sample them together
// Of a line in so many, one is looked at, up to so many: a larger sample lets fewer candidates pass, but to find its own
// k-th largest takes as long an element as to find theirs.
constexpr std::size_t lines_a_sample = 16, most_lines = 1024;
constexpr std::size_t spare_candidates = 1 << 18;

// The largest floor that at least k of n magnitudes reach, 1 <= k <= n < 2^31; or a lower one, which at most k + slack
// reach. It is found bit by bit from the top, by counting, which vectorises: faster than moving them about.
template <class B>
KERNEL B floor_for(const B* keys, std::size_t n, std::size_t k, std::size_t slack) {
    B floor = 0;
    for (B bit = B{1} << (8 * sizeof(B) - 2); bit; bit >>= 1) {
        const B higher = floor | bit;
        B count = 0;
        for (std::size_t i = 0; i < n; ++i) count += keys[i] >= higher;
        const auto reached = static_cast<std::size_t>(count);
        if (reached >= k) floor = higher;
        if (reached >= k && reached <= k + slack) break;
    }
    return floor;
}

// A magnitude that more than k elements are likely to reach: three standard deviations on the safe side.
// The sample takes up to most_lines.
template <class U, class B>
KERNEL void guess_floor(U u, std::size_t n, std::size_t k, B* sample, B* floor) {
    *floor = 0;
    const std::size_t sample_lines = std::min(most_lines, n / (lines_a_sample * line)), sample_size = sample_lines * line;
    const double expected = static_cast<double>(sample_size) * k / n;
    const auto rank = static_cast<std::size_t>(expected + 3 * std::sqrt(expected) + 8);
    if (rank >= sample_size / 2) return;
    for (std::size_t j = 0; j < sample_lines; ++j) {
        const auto at = u.from(j * (n / sample_lines));
        for (std::size_t i = 0; i < line; ++i) sample[j * line + i] = magnitude(at[i]);
    }
    *floor = floor_for(sample, sample_size, rank + 1, rank / 8);
}

constexpr int digit_bits = 16;

// The magnitudes of u, or those that were collected.
template <class U>
struct KeysOf {
    U u;
    KERNEL auto operator[](std::size_t i) const { return magnitude(u[i]); }
};

template <class B>
struct Keys {
    const B* data;
    KERNEL B operator[](std::size_t i) const { return data[i]; }
};

// Counts the next digit of every key that begins with `prefix`.
template <class K, class B>
KERNEL void count_digits(K keys, std::size_t begin, std::size_t end, int shift, B prefix, std::uint64_t* counts) {
    constexpr B mask = (B{1} << digit_bits) - 1;
    for (std::size_t i = begin; i < end; ++i) {
        const B key = keys[i] >> shift;
        if ((key >> digit_bits) == prefix) ++counts[key & mask];
    }
}

// What to take: everything above `key`, and the first `ties` elements equal to it.
template <class B>
struct Cut {
    B key;
    std::size_t ties;
};

constexpr std::size_t most_counts = 8;  // parts that count at the same time, each in half a megabyte

template <class B, class K>
Cut<B> radix_select(K keys, std::size_t n, std::size_t k) {
    Cut<B> cut{0, k};
    const std::size_t digits = std::size_t{1} << digit_bits;
    const std::size_t grain = std::max(part_elements, part_count(n, most_counts));
    const Kept<std::uint64_t> of_parts(part_count(n, grain) * digits), counts(digits);
    for (int shift = static_cast<int>(8 * sizeof(B)) - digit_bits; shift >= 0; shift -= digit_bits) {
        parallel_parts(n, grain, [&](std::size_t part, std::size_t begin, std::size_t end) {
            std::uint64_t* own = of_parts.data() + part * digits;
            std::fill(own, own + digits, 0);
            dispatch<count_digits<K, B>>(keys, begin, end, shift, cut.key, own);
        });
        std::copy(of_parts.data(), of_parts.data() + digits, counts.data());
        for (std::size_t part = 1; part < part_count(n, grain); ++part)
            for (std::size_t digit = 0; digit < digits; ++digit) counts[digit] += of_parts[part * digits + digit];
        std::size_t digit = digits - 1;
        for (; counts[digit] < cut.ties; --digit) cut.ties -= counts[digit];
        cut.key = (cut.key << digit_bits) | static_cast<B>(digit);
    }
    return cut;
}

template <class B>
KERNEL void cut_among(const B* keys, std::size_t n, std::size_t k, Cut<B>* cut) {
    cut->key = floor_for(keys, n, k, 0);
    B above = 0;
    for (std::size_t i = 0; i < n; ++i) above += keys[i] > cut->key;
    cut->ties = k - static_cast<std::size_t>(above);
}

template <class B>
Cut<B> select_among(const Buffer<B>& keys, std::size_t k) {
    if (keys.size > spare_candidates) return radix_select<B>(Keys<B>{keys.data()}, keys.size, k);
    Cut<B> cut{0, k};
    dispatch<cut_among<B>>(keys.data(), keys.size, k, &cut);
    return cut;
}

// Writes the candidates that the cut admits, in order; returns how many.
template <class I, class B>
KERNEL std::size_t admit(Cut<B> cut, const I* indices, const B* keys, std::size_t n, I* out) {
    std::size_t kept = 0;
    for (std::size_t j = 0; j < n; ++j) {
        const bool tie = keys[j] == cut.key && cut.ties != 0;
        out[kept] = indices[j];
        kept += keys[j] > cut.key || tie;
        cut.ties -= tie;
    }
    return kept;
}

template <class I, class B>
Buffer<I> admitted(Cut<B> cut, const Selection<I, B>& found) {
    const std::size_t n = found.indices.size;
    const I* indices = found.indices.data();
    const B* keys = found.keys.data();
    struct Part {
        Buffer<I> indices;
        std::size_t ties = 0;
    };
    const std::size_t grain = listed_in_part(n, part_elements);
    std::vector<Part> parts(part_count(n, grain));
    parallel_parts(n, grain, [&](std::size_t part, std::size_t begin, std::size_t end) {
        parts[part].ties = static_cast<std::size_t>(std::count(keys + begin, keys + end, cut.key));
    });
    for (Part& part : parts) {  // the first ones are taken
        part.ties = std::min(part.ties, cut.ties);
        cut.ties -= part.ties;
    }
    parallel_parts(n, grain, [&](std::size_t part, std::size_t begin, std::size_t end) {
        Part& mine = parts[part];
        mine.indices.reserve(end - begin);
        mine.indices.size = dispatch<admit<I, B>>(Cut<B>{cut.key, mine.ties}, indices + begin, keys + begin, end - begin,
                                                  mine.indices.data());
    });
    return joined(parts, &Part::indices);
}

// The slow way: those above the cut, and the first ties.
template <class I, class B, class U>
void select_exactly(U u, std::size_t n, std::size_t k, Buffer<I>* indices) {
    const Cut<B> cut = radix_select<B>(KeysOf<U>{u}, n, k);
    const auto above = collected<false, I, B>(u, n, Above<B>{cut.key}).indices;
    const auto equal = collected<false, I, B>(u, n, Equal<B>{cut.key}, any_length, cut.ties).indices;
    indices->reserve(k);
    indices->size = k;
    std::merge(above.data(), above.data() + above.size, equal.data(), equal.data() + cut.ties, indices->data());
}

template <class B, class I, class U>
void top_k(U u, std::size_t n, std::size_t k, Buffer<I>* indices) {
    if (k == 0) return;
    B floor;
    const Kept<B> sample(std::min(n, most_lines * line));
    dispatch<guess_floor<U, B>>(u, n, k, sample.data(), &floor);
    const std::size_t limit = 2 * k + spare_candidates;
    auto found = collected<true, I, B>(u, n, AtLeast<B>{floor}, limit);
    if (found.indices.size < k && n < limit) found = collected<true, I, B>(u, n, AtLeast<B>{0}, limit);
    if (found.indices.size < k || found.indices.size >= limit) return select_exactly<I, B>(u, n, k, indices);
    *indices = admitted(select_among(found.keys, k), found);
}

using Spans = std::vector<std::pair<std::int64_t, std::int64_t>>;
constexpr std::int64_t long_span = 16 * part_elements;  // enough for a team of threads

// take(i) for every span i of n elements: long ones by all threads one after the other, short ones each by one of them.
template <class F>
void each_span(const Spans& spans, std::size_t n, F&& take) {
    const auto is_long = [&](std::size_t i) { return spans[i].second - spans[i].first > long_span; };
    const bool dealt = spans.size() > 1 && is_shared(n, part_elements);
    for (std::size_t i = 0; i < spans.size(); ++i)
        if (!dealt || is_long(i)) take(i);
    if (!dealt) return;
    parallel_parts(spans.size(), 1, [&](std::size_t i, std::size_t, std::size_t) {
        if (!is_long(i)) take(i);
    });
}

void require_counts(const Spans& spans, const std::vector<std::int64_t>& counts, std::size_t n) {
    if (spans.size() != counts.size())
        throw InvalidArgument("there must be a count for each of " + std::to_string(spans.size()) + " spans, got " +
                              std::to_string(counts.size()));
    for (std::size_t i = 0; i < spans.size(); ++i) {
        const auto [start, stop] = spans[i];
        if (start < 0 || stop < start || stop > static_cast<std::int64_t>(n))
            throw InvalidArgument("spans must lie in [0, " + std::to_string(n) + "), got " + std::to_string(start) +
                                  " to " + std::to_string(stop));
        if (counts[i] < 0 || counts[i] > stop - start)
            throw InvalidArgument("k must be in [0, " + std::to_string(stop - start) + "], got " +
                                  std::to_string(counts[i]));
    }
}

}  // namespace

void bind_top_k(py::module_& m) {
    m.def("top_k_in_spans", [](const py::object& memory, const py::array& grad, const Spans& spans,
                      const std::vector<std::int64_t>& counts) {
        py::array result;
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            require_counts(spans, counts, g.n);
            result = with_index(g.n, [&](auto index) -> py::array {
                using I = decltype(index);
                Buffer<I> all;
                {
                    py::gil_scoped_release release;
                    std::vector<std::size_t> begins{0};
                    std::partial_sum(counts.begin(), counts.end(), std::back_inserter(begins));
                    all.reserve(begins.back());
                    all.size = begins.back();
                    each_span(spans, g.n, [&](std::size_t span) {
                        const auto [start, stop] = spans[span];
                        Buffer<I> found;
                        with_compensated(m ? m + start : nullptr, g.data + start, [&](auto u) {
                            top_k<Bits<T>>(u, static_cast<std::size_t>(stop - start),
                                           static_cast<std::size_t>(counts[span]), &found);
                        });
                        if (spans.size() == 1 && start == 0) {
                            all = std::move(found);
                            return;
                        }
                        const I first = static_cast<I>(start);
                        I* const out = all.data() + begins[span];
                        for (std::size_t j = 0; j < found.size; ++j) out[j] = found.data()[j] + first;
                    });
                }
                return std::move(all).to_numpy();
            });
        });
        return result;
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("spans"), py::arg("counts"),
       "Ascending indices of the counts[i] largest |memory + grad| in each of spans; the lowest index wins among equals, "
       "NaN is largest.");
}
