// Order of the accesses of a kernel's threads by CUDA's rules: an earlier access comes before a thread's next one if
// that thread knows of it.
//
// - __syncthreads orders accesses of a block's threads before it and after it. Warp exchanges order nothing, nor does
//   the end of a thread or a block. Atomics are relaxed.
// - A volatile int or long long is a flag; reads and writes of it are relaxed atomics.
// - A __threadfence attaches a thread's knowledge to all flags written later by it, or by a thread that meets it at a
//   later barrier.
// - A thread that reads a flag gains the attached knowledge at its next __threadfence. Threads that meet it at a
//   barrier gain the knowledge at their own next fence. Without both fences a flag orders nothing.
#pragma once

#include <map>
#include <unordered_map>
#include <vector>

namespace checks {

// Of other threads, by block: until which time of its own what each did is known.
struct Clock {
    std::map<unsigned, std::vector<unsigned>> of_blocks;

    unsigned at(unsigned block, unsigned thread) const {
        const auto found = of_blocks.find(block);
        return found == of_blocks.end() ? 0 : found->second[thread];
    }

    std::vector<unsigned>& times_of(unsigned block) {
        auto& times = of_blocks[block];
        times.resize(emulator::most_threads);
        return times;
    }

    void join(const Clock& other) {
        for (const auto& [block, times] : other.of_blocks) {
            auto& own = times_of(block);
            for (unsigned t = 0; t < own.size(); ++t) own[t] = std::max(own[t], times[t]);
        }
    }
};

// `known` orders accesses; the next fence adds `pending`, from flags read; `released` is attached to flags written.
struct Knowledge {
    Clock known, pending, released;

    void join(const Knowledge& other) {
        known.join(other.known);
        pending.join(other.pending);
        released.join(other.released);
    }
};

struct Thread {
    unsigned time = 1;  // how often what it did before could become known, and one
    Knowledge own;      // besides the block's
};

struct Block {
    Knowledge common, next;  // to all threads since the last barrier; and at the next
    std::vector<unsigned> own_times = std::vector<unsigned>(emulator::most_threads);  // known of its own threads
    std::vector<std::pair<char*, std::size_t>> shared;
};

static std::unordered_map<const volatile void*, Clock> flags;
static Block* here;  // null outside kernels
static Thread* now;
static unsigned block, thread;
static const char* stack;

static bool known(unsigned other_block, unsigned other_thread, unsigned time) {
    if (other_block == block && (other_thread == thread || time <= here->own_times[other_thread])) return true;
    const auto of = [=](const Knowledge& of) { return of.known.at(other_block, other_thread); };
    return time <= std::max(of(here->common), of(now->own));
}

inline void arrive(Block& of) {
    of.next.known.times_of(block)[thread] = now->time++;
    of.next.join(now->own);
    now->own = {};
}

inline void release(Block& of) {
    of.common = of.next;
    of.own_times = of.common.known.times_of(block);
}

inline void fence() {
    now->own.known.join(here->common.pending);
    now->own.known.join(now->own.pending);
    now->own.released = here->common.known;
    now->own.released.join(now->own.known);
    now->own.released.times_of(block)[thread] = now->time++;
}

inline void look_at(const volatile void* flag) {
    const auto found = flags.find(flag);
    if (found != flags.end()) now->own.pending.join(found->second);
}

inline void raise(const volatile void* flag) {
    for (const Clock* released : {&here->common.released, &now->own.released})
        if (!released->of_blocks.empty()) flags[flag].join(*released);
}

}  // namespace checks
