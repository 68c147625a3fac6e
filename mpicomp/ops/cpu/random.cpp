// Philox4x32-10, several counters a vector; the uniform numbers and the random indices made of its words.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <utility>

#include "bind.h"
#include "collect.h"
#include "philox.h"
#include "pool.h"

// Vectors wider than the baseline's are passed to nothing that is not inlined, so no ABI is at stake.
#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 loses sight of how an array of vectors is set

namespace {

using RandomWord = std::uint32_t;
using Wide = std::uint64_t;

// Vectors of 64-bit lanes whose low halves are the words: what the widening multiplication reads and writes, so that
// nothing has to be moved between lanes during the rounds. High halves hold rubbish.
template <int bytes>
struct Lanes {
    typedef Wide Vector __attribute__((vector_size(bytes)));
    typedef int Halves __attribute__((vector_size(bytes)));
    static constexpr int count = bytes / sizeof(Wide);
    static constexpr int unroll = bytes == 64 ? 4 : 2;  // independent vectors, to hide the multiplication's latency
};

// x = the low halves of x times m. GCC does not see that one instruction does it.
template <int bytes>
KERNEL void multiply_low(typename Lanes<bytes>::Vector& x, RandomWord m) {
    using V = typename Lanes<bytes>::Vector;
    const V factor = V{} + m;
#if defined(__x86_64__) && !defined(__clang__)
    using H = typename Lanes<bytes>::Halves;
    if constexpr (bytes == 16) x = (V)__builtin_ia32_pmuludq128((H)x, (H)factor);
    if constexpr (bytes == 32) x = (V)__builtin_ia32_pmuludq256((H)x, (H)factor);
    if constexpr (bytes == 64) {
        typedef long long L __attribute__((vector_size(64)));
        x = (V)__builtin_ia32_pmuludq512_mask((H)x, (H)factor, L{}, 0xff);
    }
#else
    x = (x & 0xffffffff) * factor;
#endif
}

template <int bytes>
KERNEL void philox_rounds(typename Lanes<bytes>::Vector (&c)[4][Lanes<bytes>::unroll], Wide seed) {
    using V = typename Lanes<bytes>::Vector;
    RandomWord k0 = static_cast<RandomWord>(seed), k1 = static_cast<RandomWord>(seed >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9, k1 += 0xbb67ae85)
        for (int u = 0; u < Lanes<bytes>::unroll; ++u) {
            V a = c[0][u], b = c[2][u];
            multiply_low<bytes>(a, 0xd2511f53);
            multiply_low<bytes>(b, 0xcd9e8d57);
            c[0][u] = (b >> 32) ^ c[1][u] ^ (V{} + k0);
            c[1][u] = b;
            c[2][u] = (a >> 32) ^ c[3][u] ^ (V{} + k1);
            c[3][u] = a;
        }
}

// Even lanes count up through the first half of a vector's counters, odd lanes through the second half, so that
// pairing the even lanes of two vectors, and then the odd ones, puts all words in their order.
template <int bytes, std::size_t... lane>
KERNEL void write_blocks(Key key, Wide counter, std::size_t blocks, RandomWord* words, std::index_sequence<lane...>) {
    using V = typename Lanes<bytes>::Vector;
    constexpr int unroll = Lanes<bytes>::unroll, count = Lanes<bytes>::count;
    const V offsets = {Wide{lane / 2 + lane % 2 * (count / 2)}...}, step = V{} + key.step, worker = V{} + key.worker;
    for (std::size_t done = 0; done < blocks; done += unroll * count) {
        V c[4][unroll];
        for (int u = 0; u < unroll; ++u) {
            c[0][u] = offsets + (counter + done + u * count);
            c[1][u] = c[0][u] >> 32;
            c[2][u] = step;
            c[3][u] = worker;
        }
        philox_rounds<bytes>(c, key.seed);
        for (int u = 0; u < unroll; ++u) {
            const V front = (c[0][u] & 0xffffffff) | (c[1][u] << 32), back = (c[2][u] & 0xffffffff) | (c[3][u] << 32);
            const V even = {(lane % 2 ? back[lane / 2 * 2] : front[lane / 2 * 2])...};
            const V odd = {(lane % 2 ? back[lane / 2 * 2 + 1] : front[lane / 2 * 2 + 1])...};
            RandomWord* to = words + 4 * (done + u * count);
            std::memcpy(to, &even, bytes);
            std::memcpy(to + bytes / sizeof(RandomWord), &odd, bytes);
        }
    }
}

template <int bytes>
KERNEL void write_blocks(Key key, Wide counter, std::size_t blocks, RandomWord* words) {
    write_blocks<bytes>(key, counter, blocks, words, std::make_index_sequence<Lanes<bytes>::count>());
}

#if defined(__x86_64__)
TARGET_AVX512 void write_blocks_avx512(Key key, Wide counter, std::size_t blocks, RandomWord* words) {
    write_blocks<64>(key, counter, blocks, words);
}
TARGET_AVX2 void write_blocks_avx2(Key key, Wide counter, std::size_t blocks, RandomWord* words) {
    write_blocks<32>(key, counter, blocks, words);
}
#endif

// At least `blocks` Philox blocks of four words, rounded up to whole vectors (at most 32 blocks).
void write_words(Key key, Wide counter, std::size_t blocks, RandomWord* words) {
#if defined(__x86_64__)
    if (current_isa() == Isa::avx512) return write_blocks_avx512(key, counter, blocks, words);
    if (current_isa() == Isa::avx2) return write_blocks_avx2(key, counter, blocks, words);
#endif
    write_blocks<16>(key, counter, blocks, words);
}

template <class T>
KERNEL T number_of(RandomWord word) {
    if constexpr (std::is_same_v<T, float>) return uniform_of(word);
    return static_cast<T>(word);
}

template <class T>
KERNEL void numbers(Key key, Wide first, std::size_t n, T* out) {
    RandomBlock random;
    for (std::size_t begin = 0; begin < n; begin += random_block) {
        const std::size_t length = std::min(random_block, n - begin);
        const RandomWord* words = random.fill(key, first + begin, length);
        for (std::size_t i = 0; i < length; ++i) out[begin + i] = number_of<T>(words[i]);
    }
}

// One of part j = [j n div k, (j + 1) n div k) from word j. The bound moves on by n div k and, as often as remainders
// n mod k have added up to k, by one more.
template <class I>
void strata(Key key, Wide n, Wide k, I* indices) {
    const Wide step = n / k, rest = n % k;
    Wide start = 0, carried = 0;
    RandomBlock random;
    for (Wide begin = 0; begin < k; begin += random_block) {
        const Wide length = std::min<Wide>(random_block, k - begin);
        const RandomWord* words = random.fill(key, begin, length);
        for (Wide j = 0; j < length; ++j) {
            carried += rest;
            const bool more = carried >= k;
            carried -= more ? k : 0;
            const Wide part = step + more, word = words[j];
            indices[begin + j] = static_cast<I>(start + word * (part >> 32) + (word * (part & 0xffffffff) >> 32));
            start += part;
        }
    }
}

template <class T>
py::array draw(std::int64_t n, std::int64_t first, const py::object& key) {
    if (n < 0) throw InvalidArgument("n must be >= 0, got " + std::to_string(n));
    const Key k = key_of(key);
    const Wide from = first_of(first);
    py::array_t<T> out(n);
    T* data = out.mutable_data();
    py::gil_scoped_release release;
    parallel_parts(static_cast<std::size_t>(n), part_elements, [&](std::size_t, std::size_t begin, std::size_t end) {
        dispatch<numbers<T>>(k, from + begin, end - begin, data + begin);
    });
    return std::move(out);
}

py::array random_strata(std::int64_t n, std::int64_t k, const py::object& key) {
    if (k < 0 || k > n) throw InvalidArgument("k must be in [0, " + std::to_string(n) + "], got " + std::to_string(k));
    const Key stream = key_of(key);
    return with_index(static_cast<std::size_t>(n), [&](auto zero) -> py::array {
        using I = decltype(zero);
        py::array_t<I> indices(k);
        I* data = indices.mutable_data();
        if (k == 0) return std::move(indices);
        py::gil_scoped_release release;
        strata<I>(stream, static_cast<Wide>(n), static_cast<Wide>(k), data);
        return std::move(indices);
    });
}

}  // namespace

Key key_of(const py::object& key) {
    try {
        const auto parts = py::tuple(key);
        if (parts.size() == 3) return {parts[0].cast<std::uint64_t>(), parts[1].cast<RandomWord>(), parts[2].cast<RandomWord>()};
    } catch (const py::builtin_exception&) {  // a number out of range, or no number
    } catch (const py::error_already_set&) {  // no sequence
    }
    throw InvalidArgument("key must be (seed below 2^64, step below 2^32, worker below 2^32), got " +
                          py::repr(key).cast<std::string>());
}

std::uint64_t first_of(std::int64_t first) {
    if (first < 0) throw InvalidArgument("first must be >= 0, got " + std::to_string(first));
    return static_cast<std::uint64_t>(first);
}

const std::uint32_t* RandomBlock::fill(Key key, std::uint64_t first, std::size_t n) {
    const std::size_t skipped = first % 4;
    write_words(key, first / 4, (skipped + n + 3) / 4, words_);
    return words_ + skipped;
}

void bind_random(py::module_& m) {
    m.def("random_words", &draw<RandomWord>, py::arg("n"), py::arg("first"), py::arg("key"),
          "Elements [first, first + n) of the key's stream, uint32.");
    m.def("uniform", &draw<float>, py::arg("n"), py::arg("first"), py::arg("key"),
          "Elements [first, first + n) of the key's stream as float32 in [0, 1), multiples of 2^-24.");
    m.def("random_strata_in_span", &random_strata, py::arg("n"), py::arg("k"), py::arg("key"),
          "k ascending indices, one drawn uniformly from each of k nearly equal parts of n elements.");
}
