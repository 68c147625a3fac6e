// The memory's next state: after an exchange in one pass, or before it in one pass that selects too, and corrected
// afterwards where something was sent.
#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "arrays.h"
#include "bind.h"
#include "chunk_max.h"
#include "indices.h"
#include "isa.h"
#include "real.h"

namespace {

constexpr std::size_t block = 1024;  // elements computed at a time; they wait in the L1 cache to be written
constexpr std::size_t cache_line = 64;
constexpr std::size_t stream_from = std::size_t{4} << 20;  // bytes; a smaller result is worth keeping in cache

// Copies past the caches, so that `dst` is not read before it is overwritten; dst is aligned to a cache line.
template <class T>
KERNEL void stream(T* dst, const T* src, std::size_t n) {
    std::size_t i = 0;
#if defined(__x86_64__)
    constexpr std::size_t lanes = sizeof(__m128i) / sizeof(T);
    for (; i + lanes <= n; i += lanes)
        _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i), *reinterpret_cast<const __m128i*>(src + i));
#endif
    std::copy(src + i, src + n, dst + i);
}

KERNEL void finish_streaming() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

// out = memory + beta * grad; returns how many of grad are NaN or infinite.
template <class T>
KERNEL std::size_t filter(T* out, const T* memory, const T* grad, std::size_t n, T beta) {
    Bits<T> nonfinite = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const T change = beta * grad[i];
        out[i] = memory[i] + change;
        nonfinite += is_nonfinite(grad[i]);
    }
    return static_cast<std::size_t>(nonfinite);
}

template <class T>
KERNEL T keep_unsent(T memory, T grad, T sent, T beta) {
    const T unsent = (memory + grad) - sent;
    return (T{1} - beta) * memory + beta * unsent;
}

template <class T>
std::size_t elements_to_line(const T* pointer) {
    const std::size_t past = reinterpret_cast<std::uintptr_t>(pointer) % cache_line;
    return past ? (cache_line - past) / sizeof(T) : 0;
}

// next = memory + beta * grad, block by block; `amend(computed, begin, end)` may change a block before it is written.
template <class T, class Amend>
KERNEL std::size_t filter_blocks(T* next, const T* memory, const T* grad, std::size_t n, T beta, bool streaming,
                                 Amend amend) {
    alignas(cache_line) T computed[block];
    std::size_t nonfinite = 0, end = 0;
    for (std::size_t begin = 0; begin < n; begin = end) {
        // The first block ends on a cache line of `next`, so that all others begin on one.
        const bool unaligned = streaming && begin == 0 && elements_to_line(next);
        end = std::min(n, begin + (unaligned ? elements_to_line(next) : block));
        nonfinite += filter(computed, memory + begin, grad + begin, end - begin, beta);
        amend(computed, begin, end);
        if (streaming && !unaligned)
            stream(next + begin, computed, end - begin);
        else
            std::copy(computed, computed + (end - begin), next + begin);
    }
    if (streaming) finish_streaming();
    return nonfinite;
}

template <class T, class I>
KERNEL std::size_t masked_update(T* next, const T* memory, const T* grad, std::size_t n, const I* indices,
                                 const T* sent, std::size_t k, T beta, bool streaming) {
    std::size_t j = 0;
    return filter_blocks(next, memory, grad, n, beta, streaming, [&](T* computed, std::size_t begin,
                                                                          std::size_t end) KERNEL_LAMBDA {
        for (; j < k && static_cast<std::size_t>(indices[j]) < end; ++j) {
            const std::size_t i = indices[j];
            computed[i - begin] = keep_unsent(memory[i], grad[i], sent[j], beta);
        }
    });
}

// Chunks are selected from as soon as their last element has been read, while they are in a cache.
template <class T, class P>
KERNEL std::size_t update_chunk_max(T* next, const T* memory, const T* grad, std::size_t n, T beta,
                                    std::size_t chunk, P* positions, bool streaming) {
    const Compensated<T, true> u{memory, grad};
    std::size_t at = 0;
    return filter_blocks(next, memory, grad, n, beta, streaming, [&](T*, std::size_t, std::size_t end) KERNEL_LAMBDA {
        for (; at + chunk <= end; at += chunk) *positions++ = static_cast<P>(arg_max(u.from(at), chunk));
        if (end == n && at < n) *positions = static_cast<P>(arg_max(u.from(at), n - at));
    });
}

template <class T, class I>
KERNEL void correct(T* next, const T* memory, const T* grad, const I* indices, const T* sent, std::size_t k, T beta) {
    constexpr std::size_t ahead = 16;
    for (std::size_t j = 0; j < k; ++j) {
        if (j + ahead < k) {
            const std::size_t soon = indices[j + ahead];
            __builtin_prefetch(memory + soon);
            __builtin_prefetch(grad + soon);
            __builtin_prefetch(next + soon, 1);
        }
        const std::size_t i = indices[j];
        next[i] = keep_unsent(memory[i], grad[i], sent[j], beta);
    }
}

template <class T>
bool streams(View<T> next, View<const T> memory, View<const T> grad) {
    return next.data != memory.data && next.data != grad.data && next.n * sizeof(T) >= stream_from;
}

template <class T>
void refuse_overlap(View<T> next, View<const T> other, const char* name) {
    const bool disjoint = next.data + next.n <= other.data || other.data + other.n <= next.data;
    if (next.data != other.data && !disjoint)
        throw BufferRefused(std::string("next must be ") + name + " itself or not overlap it");
}

}  // namespace

void bind_update(py::module_& m) {
    m.def("masked_update", [](py::array next, const py::array& memory, const py::array& grad, const py::array& indices,
                              const py::array& sent, double beta) {
        std::size_t nonfinite = 0;
        visit_real(grad, "grad", [&](auto zero) {
            visit_index(indices, "indices", [&](auto index) {
                using T = decltype(zero);
                using I = decltype(index);
                const auto g = input<T>(grad, "grad");
                const auto m = input<T>(memory, "memory", g.n);
                const auto to = output<T>(next, "next", g.n);
                const auto at = input<I>(indices, "indices");
                const auto s = input<T>(sent, "sent", at.n);
                require_in_range(at, g.n);
                require_ascending(at);
                refuse_overlap(to, m, "memory");
                refuse_overlap(to, g, "grad");
                const bool streaming = streams(to, m, g);
                py::gil_scoped_release release;
                nonfinite = dispatch<masked_update<T, I>>(to.data, m.data, g.data, g.n, at.data, s.data, at.n,
                                                          static_cast<T>(beta), streaming);
            });
        });
        return nonfinite;
    }, py::arg("next"), py::arg("memory"), py::arg("grad"), py::arg("indices"), py::arg("sent"), py::arg("beta"),
       "next = memory + beta * grad, and at indices (1 - beta) * memory + beta * ((memory + grad) - sent).\n"
       "Returns how many entries of grad are NaN or infinite. next may be memory itself.");

    m.def("update_chunk_max", [](py::array next, const py::array& memory, const py::array& grad, double beta,
                                 std::int64_t chunk, py::array positions) {
        check_chunk(chunk);
        std::size_t nonfinite = 0;
        visit_real(grad, "grad", [&](auto zero) {
            visit_positions(positions, chunk, [&](auto byte) {
                using T = decltype(zero);
                using P = decltype(byte);
                const auto g = input<T>(grad, "grad");
                const auto m = input<T>(memory, "memory", g.n);
                const auto to = output<T>(next, "next", g.n);
                const auto at = output<P>(positions, "positions", chunk_count(g.n, chunk));
                if (to.data == m.data) throw BufferRefused("next must not be memory itself");
                refuse_overlap(to, m, "memory");
                refuse_overlap(to, g, "grad");
                const bool streaming = streams(to, m, g);
                py::gil_scoped_release release;
                nonfinite = dispatch<update_chunk_max<T, P>>(to.data, m.data, g.data, g.n, static_cast<T>(beta),
                                                             static_cast<std::size_t>(chunk), at.data, streaming);
            });
        });
        return nonfinite;
    }, py::arg("next"), py::arg("memory"), py::arg("grad"), py::arg("beta"), py::arg("chunk"), py::arg("positions"),
       "next = memory + beta * grad, and positions as of chunk_max(memory, grad, chunk), in one pass.\n"
       "Returns how many entries of grad are NaN or infinite.");

    m.def("correct", [](py::array next, const py::array& memory, const py::array& grad, const py::array& indices,
                        const py::array& sent, double beta) {
        visit_real(grad, "grad", [&](auto zero) {
            visit_index(indices, "indices", [&](auto index) {
                using T = decltype(zero);
                using I = decltype(index);
                const auto g = input<T>(grad, "grad");
                const auto m = input<T>(memory, "memory", g.n);
                const auto to = output<T>(next, "next", g.n);
                const auto at = input<I>(indices, "indices");
                const auto s = input<T>(sent, "sent", at.n);
                require_in_range(at, g.n);
                refuse_overlap(to, m, "memory");
                py::gil_scoped_release release;
                dispatch<correct<T, I>>(to.data, m.data, g.data, at.data, s.data, at.n, static_cast<T>(beta));
            });
        });
    }, py::arg("next"), py::arg("memory"), py::arg("grad"), py::arg("indices"), py::arg("sent"), py::arg("beta"),
       "next[indices] = (1 - beta) * memory + beta * ((memory + grad) - sent) there; indices are distinct.");
}
