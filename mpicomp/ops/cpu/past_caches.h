// Results that are written past the caches: memory is not read before it is overwritten, and what is cached stays.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "isa.h"

constexpr std::size_t kept_bytes = std::size_t{1} << 20;  // a longer result does not stay in a core's caches
constexpr std::size_t block_of_result = std::size_t{1} << 14;  // bytes that are ready in the L1 cache before they go

KERNEL void stream_bytes(char* dst, const char* src, std::size_t nbytes) {
#if defined(__x86_64__)
    const std::size_t head = std::min(nbytes, (64 - reinterpret_cast<std::uintptr_t>(dst) % 64) % 64);
    std::memcpy(dst, src, head);
    std::size_t i = head;
    for (; i + 64 <= nbytes; i += 64)
        for (std::size_t j = i; j < i + 64; j += 16)
            _mm_stream_si128(reinterpret_cast<__m128i*>(dst + j),
                             _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + j)));
    std::memcpy(dst + i, src + i, nbytes - i);
    _mm_sfence();  // before anyone is told that the bytes are there
#else
    std::memcpy(dst, src, nbytes);
#endif
}

// memcpy, or past the caches.
KERNEL void copy_bytes(char* dst, const char* src, std::size_t nbytes, bool stream) {
    if (stream)
        stream_bytes(dst, src, nbytes);
    else
        std::memcpy(dst, src, nbytes);
}

// Elements [begin, end) of a result of n at `out`: make(first, last, to) writes [first, last) to `to`. If the result is
// long, that is a block beside it, of a multiple of 2048 elements but for the last.
template <class T, class F>
void write_result(T* out, std::size_t n, std::size_t begin, std::size_t end, F&& make) {
    if (n * sizeof(T) < kept_bytes) {
        make(begin, end, out + begin);
        return;
    }
    constexpr std::size_t block = block_of_result / sizeof(T);
    alignas(64) T ready[block];
    for (std::size_t first = begin; first < end; first += block) {
        const std::size_t last = std::min(end, first + block);
        make(first, last, ready);
        stream_bytes(reinterpret_cast<char*>(out + first), reinterpret_cast<const char*>(ready),
                     (last - first) * sizeof(T));
    }
}
