// Memory that is kept for the next ones (memory.cpp).
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

// At least so many bytes, on a cache line's boundary, not initialised. Long ones are of memory that earlier ones left.
class KeptMemory {
    void* at_ = nullptr;
    std::size_t size_ = 0;

public:
    KeptMemory() = default;
    explicit KeptMemory(std::size_t nbytes);
    KeptMemory(KeptMemory&& other) noexcept { swap(other); }
    KeptMemory& operator=(KeptMemory&& other) noexcept {
        KeptMemory(std::move(other)).swap(*this);
        return *this;
    }
    ~KeptMemory();

    void* data() const { return at_; }
    std::size_t size() const { return size_; }
    void swap(KeptMemory& other) noexcept {
        std::swap(at_, other.at_);
        std::swap(size_, other.size_);
    }
};

// Elements in such memory.
template <class T>
class Kept {
    static_assert(std::is_trivial_v<T>);
    KeptMemory memory_;

public:
    explicit Kept(std::size_t n) : memory_(n * sizeof(T)) {}
    T* data() const { return static_cast<T*>(memory_.data()); }
    T& operator[](std::size_t i) const { return data()[i]; }
};
