// Stream compaction: the indices of all elements whose magnitude passes a test, ascending.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "arrays.h"
#include "real.h"

// A growing array that is not initialised and can be handed to NumPy without a copy.
template <class T>
class Buffer {
    static_assert(std::is_trivial_v<T>);
    struct Free {
        void operator()(void* pointer) const { std::free(pointer); }
    };
    std::unique_ptr<T, Free> data_;
    std::size_t capacity_ = 0;

public:
    std::size_t size = 0;
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }

    void reserve(std::size_t wanted) {
        if (wanted > capacity_) resize(std::max(wanted, 2 * capacity_));
    }

    py::array_t<T> to_numpy() && {
        resize(size);
        T* pointer = data_.release();
        py::capsule owner(pointer, [](void* held) { std::free(held); });
        return py::array_t<T>(static_cast<py::ssize_t>(size), pointer, owner);
    }

private:
    void resize(std::size_t capacity) {
        T* moved = static_cast<T*>(std::realloc(data_.get(), std::max<std::size_t>(1, capacity) * sizeof(T)));
        if (!moved) throw std::bad_alloc();
        (void)data_.release();
        data_.reset(moved);
        capacity_ = capacity;
    }
};

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

// Collects every i whose magnitude(u[i]) passes; stops early once `limit` or more are found (up to a block more).
// Eight flags are looked at as one word, so a stretch where nothing qualifies costs one comparison.
template <bool with_keys, class U, class Test, class I, class B>
KERNEL void collect(U u, std::size_t n, Test test, std::size_t limit, Selection<I, B>* found) {
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
                indices[count] = static_cast<I>(i);
                if (with_keys) found->keys.data()[count] = magnitude(u[i]);
                ++count;
            }
        }
    }
    found->indices.size = found->keys.size = count;
}

// Calls f(I{}) with the index type that n elements need.
template <class F>
auto with_index(std::size_t n, F&& f) {
    if (static_cast<std::int64_t>(n) > index_limit()) return f(std::int64_t{});
    return f(std::int32_t{});
}
