// Stream compaction: the indices of all elements whose magnitude passes a test, ascending.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "arrays.h"
#include "kept_memory.h"
#include "pool.h"
#include "real.h"

// A growing array that is not initialised and can be handed to NumPy without a copy.
template <class T>
class Buffer {
    static_assert(std::is_trivial_v<T>);
    KeptMemory memory_;

public:
    std::size_t size = 0;
    T* data() { return static_cast<T*>(memory_.data()); }
    const T* data() const { return static_cast<const T*>(memory_.data()); }

    void reserve(std::size_t wanted) {
        if (wanted * sizeof(T) <= memory_.size()) return;
        KeptMemory larger(std::max(wanted * sizeof(T), 2 * memory_.size()));
        if (memory_.size()) std::memcpy(larger.data(), memory_.data(), memory_.size());
        memory_.swap(larger);
    }

    py::array_t<T> to_numpy() && {
        auto* held = new KeptMemory(std::move(memory_));
        py::capsule owner(held, [](void* one) { delete static_cast<KeptMemory*>(one); });
        return py::array_t<T>(static_cast<py::ssize_t>(size), static_cast<T*>(held->data()), owner);
    }
};

// Elements in a part whose list is joined to others': a few parts a thread, since each needs memory of its own. The whole
// list is the same whatever the parts.
inline std::size_t listed_in_part(std::size_t n, std::size_t least) {
    if (n <= least) return least;
    const int threads = threads_in_use();
    return threads == 1 ? n : std::max(least, n / (4 * static_cast<std::size_t>(threads)) + 1);
}

// The lists of all parts, one behind the other.
template <class Part, class T>
Buffer<T> joined(std::vector<Part>& parts, Buffer<T> Part::*list) {
    if (parts.size() == 1) return std::move(parts[0].*list);
    std::vector<std::size_t> begins;
    Buffer<T> all;
    for (const Part& part : parts) {
        begins.push_back(all.size);
        all.size += (part.*list).size;
    }
    all.reserve(all.size);
    parallel_parts(parts.size(), 1, [&](std::size_t p, std::size_t, std::size_t) {
        const Buffer<T> one = std::move(parts[p].*list);
        if (one.size) std::memcpy(all.data() + begins[p], one.data(), one.size * sizeof(T));
    });
    return all;
}

// What collect() appends to: indices, and their magnitudes where `keys` is given.
template <class I, class B>
struct Selection {
    Buffer<I> indices;
    Buffer<B> keys;
};

template <class B>
struct AtLeast {
    B key;
    KERNEL bool operator()(B other) const { return other >= key; }
};

template <class B>
struct Above {
    B key;
    KERNEL bool operator()(B other) const { return other > key; }
};

template <class B>
struct Equal {
    B key;
    KERNEL bool operator()(B other) const { return other == key; }
};

constexpr std::size_t collect_block = 512;  // elements flagged at a time; their flags stay in the L1 cache

template <class U, class Test>
KERNEL void flag_block(U u, std::size_t n, Test test, std::uint8_t* flags) {
    for (std::size_t i = 0; i < n; ++i) flags[i] = test(magnitude(u[i]));
    std::memset(flags + n, 0, (8 - n % 8) % 8);
}

// Collects first + i for every i whose magnitude(u[i]) passes; stops early once `limit` or more are found (up to a block
// more).
// Eight flags are looked at as one word, so a stretch where nothing qualifies costs one comparison.
template <bool with_keys, class U, class Test, class I, class B>
KERNEL void collect(U u, std::size_t first, std::size_t n, Test test, std::size_t limit, Selection<I, B>* found) {
    alignas(64) std::uint8_t flags[collect_block];
    std::size_t count = 0;
    for (std::size_t begin = 0; begin < n && count < limit; begin += collect_block) {
        const std::size_t length = std::min(collect_block, n - begin);
        flag_block(u.from(begin), length, test, flags);
        found->indices.reserve(count + length);
        if (with_keys) found->keys.reserve(count + length);
        I* indices = found->indices.data();
        for (std::size_t offset = 0; offset < length; offset += 8) {
            std::uint64_t word;
            std::memcpy(&word, flags + offset, 8);
            for (; word; word &= word - 1) {
                const std::size_t i = begin + offset + __builtin_ctzll(word) / 8;  // little-endian
                indices[count] = static_cast<I>(first + i);
                if (with_keys) found->keys.data()[count] = magnitude(u[i]);
                ++count;
            }
        }
    }
    found->indices.size = count;
    if (with_keys) found->keys.size = count;
}

// All i whose magnitude(u[i]) passes, ascending; or `limit` or more of them, whichever were found first. Of each part
// at most the first `part_limit` (up to a block more).
template <bool with_keys, class I, class B, class U, class Test>
Selection<I, B> collected(U u, std::size_t n, Test test, std::size_t limit = any_length,
                          std::size_t part_limit = any_length) {
    const std::size_t grain = listed_in_part(n, part_elements);
    std::vector<Selection<I, B>> parts(part_count(n, grain));
    std::atomic<std::size_t> count{0};
    part_limit = std::min(limit, part_limit);
    parallel_parts(n, grain, [&](std::size_t part, std::size_t begin, std::size_t end) {
        if (count.load(std::memory_order_relaxed) >= limit) return;
        dispatch<collect<with_keys, U, Test, I, B>>(u.from(begin), begin, end - begin, test, part_limit, &parts[part]);
        count.fetch_add(parts[part].indices.size, std::memory_order_relaxed);
    });
    return {joined(parts, &Selection<I, B>::indices), joined(parts, &Selection<I, B>::keys)};
}

// Calls f(I{}) with the index type that n elements need.
template <class F>
auto with_index(std::size_t n, F&& f) {
    if (static_cast<std::int64_t>(n) > index_limit()) return f(std::int64_t{});
    return f(std::int32_t{});
}
