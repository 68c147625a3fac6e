// Words of a key's stream, uniform numbers, and one random index of each part of a vector.
// Instances: numbers<unsigned int|float>
// Instances: random_strata<INDEX>
#include "common.cuh"
#include "groups.cuh"
#include "philox.cuh"

template <typename T> __device__ T number_of(unsigned word);
template <> __device__ inline unsigned number_of<unsigned>(unsigned word) { return word; }
template <> __device__ inline float number_of<float>(unsigned word) { return uniform_of(word); }

// out[i] = element first + i, n of them. One block of four elements a thread and round.
template <typename T>
__global__ void numbers(long long n, unsigned long long first, unsigned long long seed, unsigned step, unsigned worker,
                        T* out) {
    Stream stream(seed, step, worker);
    const long long skipped = first % 4;
    for (long long b = grid_index(); 4 * b < skipped + n; b += grid_size())
        for (long long i = max(4 * b - skipped, 0ll); i < min(4 * b - skipped + 4, n); ++i)
            out[i] = number_of<T>(stream.word(first + i));
}

// In each of `count` spans, k indices, the j-th one of part j of its n elements, [j n div k, (j + 1) n div k), from word j
// of the stream of worker + the span's number. spans: of each the number of its first block of four words (`count` + 1 of
// them), then where each begins, its n, its k, and where its indices begin in the list. A block of words a thread and round.
template <typename I>
__global__ void random_strata(const long long* spans, long long count, unsigned long long seed, unsigned step,
                              unsigned worker, I* indices) {
    for (long long b = grid_index(); b < spans[count]; b += grid_size()) {
        const long long s = group_of(spans, count, b), *of = spans + count + 1 + s;
        const long long start = of[0], n = of[count], k = of[2 * count], list = of[3 * count], first = 4 * (b - spans[s]);
        const unsigned long long part = n / k, rest = n % k;
        Stream stream(seed, step, worker + (unsigned)s);
        for (long long j = first; j < min(first + 4, k); ++j) {
            const unsigned long long u = j, begin = u * part + u * rest / k;
            const unsigned long long word = stream.word(j), size = (u + 1) * part + (u + 1) * rest / k - begin;
            indices[list + j] = (I)(start + begin + word * (size >> 32) + (word * (size & 0xffffffff) >> 32));
        }
    }
}
