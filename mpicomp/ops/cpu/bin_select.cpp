// Selection by bins (AdaComp): every element that, with its gradient added once more, reaches its bin's maximum.
#include <cstring>

#include "bind.h"
#include "collect.h"
#include "set_bits.h"

namespace {

constexpr std::size_t bin_block = 1024;  // elements looked at twice: few enough to stay in the L1 cache

// Facts about up to a block of elements. Whole lines are written, so that the last one may overlap what follows.
template <class T>
struct Block {
    static constexpr std::size_t line = line_elements<T>;
    alignas(64) Bits<T> now[bin_block + line] = {}, then[bin_block + line] = {};  // magnitudes of u and of u + grad
    alignas(64) std::uint8_t reaches[bin_block + line] = {};                      // 1 where `then` is at least the bin's peak
};

template <class U, class T>
KERNEL void look_at(U u, std::size_t n, Block<T>* block) {
    for (std::size_t i = 0; i < n; ++i) {
        const T value = u[i];
        block->now[i] = magnitude(value);
        block->then[i] = magnitude(value + u.grad[i]);
    }
}

template <class B>
KERNEL B largest(const B* keys, std::size_t n) {
    B best = 0;
    for (std::size_t i = 0; i < n; ++i) best = std::max(best, keys[i]);
    return best;
}

// Meanwhile what is looked at next is fetched.
template <class U, class T>
KERNEL void flag_bin(Block<T>* block, std::size_t begin, std::size_t length, Bits<T> peak, U next) {
    constexpr std::size_t line = Block<T>::line;
    for (std::size_t i = begin; i < begin + length; i += line) {
        next.prefetch(i);
        for (std::size_t lane = 0; lane < line; ++lane) block->reaches[i + lane] = block->then[i + lane] >= peak;
    }
}

// Appends `first` + i for each of n elements that is flagged.
template <class T, class I>
KERNEL void append(Block<T>* block, std::size_t first, std::size_t n, Buffer<I>* found) {
    std::memset(block->reaches + n, 0, 8);
    found->reserve(found->size + n + 8);
    std::size_t count = found->size;
    for (std::size_t i = 0; i < n; i += 8) {
        std::uint64_t flags;
        std::memcpy(&flags, block->reaches + i, 8);  // little-endian
        if (flags) count += write_set_bits(flags_to_byte(flags), first + i, found->data() + count);
    }
    found->size = count;
}

// Bins of at most a block: as many whole ones as fit are done together.
template <class U, class T, class I>
KERNEL void short_bins(U u, std::size_t begin, std::size_t end, std::size_t length, Buffer<I>* found) {
    Block<T> here;
    const std::size_t step = bin_block / length * length;
    for (std::size_t first = begin; first < end; first += step) {
        const std::size_t count = std::min(step, end - first);
        look_at(u.from(first), count, &here);
        for (std::size_t bin = 0; bin < count; bin += length) {
            const std::size_t width = std::min(length, count - bin);
            flag_bin(&here, bin, width, largest(here.now + bin, width), u.from(first + step));
        }
        append(&here, first, count, found);
    }
}

// A long bin is read twice: for its peak, and again (from a cache, where it fits into one) for what reaches it.
template <class U, class T, class I>
KERNEL void long_bin(U u, std::size_t first, std::size_t end, Buffer<I>* found) {
    Block<T> here;
    Bits<T> peak = 0;
    for (std::size_t i = first; i < end; ++i) peak = std::max(peak, magnitude(u[i]));
    for (std::size_t begin = first; begin < end; begin += bin_block) {
        const std::size_t count = std::min(bin_block, end - begin);
        look_at(u.from(begin), count, &here);
        flag_bin(&here, 0, count, peak, u.from(begin + bin_block));
        append(&here, begin, count, found);
    }
}

template <class U, class T, class I>
KERNEL void bin_select(U u, std::size_t begin, std::size_t end, std::size_t length, Buffer<I>* found) {
    if (length <= bin_block) return short_bins<U, T, I>(u, begin, end, length, found);
    for (std::size_t first = begin; first < end; first += std::min(length, end - first))
        long_bin<U, T, I>(u, first, first + std::min(length, end - first), found);
}

// Parts are whole bins.
template <class T, class I, class U>
Buffer<I> select_in_bins(U u, std::size_t n, std::size_t length) {
    struct Part {
        Buffer<I> indices;
    };
    const std::size_t bins = part_count(n, length);
    const std::size_t grain = std::max<std::size_t>(1, listed_in_part(n, part_elements) / length);
    std::vector<Part> parts(part_count(bins, grain));
    parallel_parts(bins, grain, [&](std::size_t part, std::size_t begin, std::size_t end) {
        const std::size_t last = end == bins ? n : end * length;
        dispatch<bin_select<U, T, I>>(u, begin * length, last, length, &parts[part].indices);
    });
    return joined(parts, &Part::indices);
}

}  // namespace

void bind_bin_select(py::module_& m) {
    m.def("bin_select_in_span", [](const py::object& memory, const py::array& grad, std::int64_t length) {
        if (length < 1) throw InvalidArgument("length must be at least 1, got " + std::to_string(length));
        py::array result;
        visit_real(grad, "grad", [&](auto zero) {
            using T = decltype(zero);
            const auto g = input<T>(grad, "grad");
            const T* m = optional_input<T>(memory, "memory", g.n);
            result = with_index(g.n, [&](auto index) -> py::array {
                using I = decltype(index);
                Buffer<I> found;
                {
                    py::gil_scoped_release release;
                    with_compensated(m, g.data, [&](auto u) {
                        found = select_in_bins<T, I>(u, g.n, static_cast<std::size_t>(length));
                    });
                }
                return std::move(found).to_numpy();
            });
        });
        return result;
    }, py::arg("memory").none(true), py::arg("grad"), py::arg("length"),
       "Ascending indices of |u + grad| >= max |u| of its bin of length elements; NaN counts as largest.");
}
