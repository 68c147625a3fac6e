// A team of threads for long arrays.
//
// Results have the same bits for every team. A partition whose sums are added depends on the number of elements alone,
// never on the number of threads; lists that are joined in the order of the parts are the same for every partition.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>

constexpr std::size_t part_elements = std::size_t{1} << 16;  // of an operation that mostly waits for memory

int threads_in_use();                         // that a call from this thread may have, its own included; at least 1
void set_threads(const std::string& number);  // MPICOMP_NUM_THREADS; "": this rank's share of its CPUs
void refuse_threads(const std::string& problem);  // instead: calls that would ask for threads throw it
void set_crowd(double ranks_per_cpu);         // how many ranks share a CPU of this rank's, on average; at least 1
void force_threads(int number);               // for tests: so many even if there are fewer CPUs; 0: as set

inline std::size_t part_count(std::size_t n, std::size_t grain = part_elements) { return n / grain + (n % grain != 0); }

// True if parts of n elements go to several threads: then it pays to look whether they can.
bool is_shared(std::size_t n, std::size_t grain);

// Runs work(context, part) once for each part of `count`, on several threads if they are many; throws what one of them
// threw. The caller holds no interpreter lock.
void run_parts(std::size_t count, void (*work)(void* context, std::size_t part), void* context);

// f(part, begin, end) for every part of n elements: `grain` each, the last one the rest. Calls inside f, and those that
// another thread makes at the same time, run on their own threads alone.
template <class F>
void parallel_parts(std::size_t n, std::size_t grain, F&& f) {
    struct Task {
        std::size_t n, grain;
        std::remove_reference_t<F>* f;
    } task{n, grain, std::addressof(f)};
    run_parts(part_count(n, grain), [](void* context, std::size_t part) {
        const Task& t = *static_cast<Task*>(context);
        const std::size_t begin = part * t.grain;
        (*t.f)(part, begin, std::min(t.n, begin + t.grain));
    }, &task);
}
