// The part of a node's shared memory that its ranks steer by: one line of counters a rank.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

// Written by its rank alone, read by all. Counters count pieces since the window was made and never go back, so nothing
// is reset between calls.
struct alignas(128) RankLine {
    std::atomic<std::uint64_t> ready;   // pieces whose contribution of this rank may be read
    std::atomic<std::uint64_t> summed;  // pieces whose own block this rank has reduced
    std::atomic<std::uint64_t> taken;   // pieces whose result this rank has taken over
    std::atomic<std::uint64_t> failed;  // not 0: this rank left in the middle of a call
    // Where the vectors of the call are, valid once `ready` has moved: a segment that all ranks map, -1 for private memory.
    std::int64_t send_segment, receive_segment;
    std::uint64_t send_offset, receive_offset;
};

static_assert(sizeof(RankLine) == 128 && std::atomic<std::uint64_t>::is_always_lock_free);

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

inline std::uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

// How a rank waits for another: it looks `spins` times (0 where ranks share cores), then gives the core away between
// looks, and after a millisecond sleeps between them and calls `idle`, which lets MPI and signals get on.
template <class Reached, class Idle>
void wait_until(const Reached& reached, int spins, const Idle& idle) {
    for (int i = 0; i < spins; ++i) {
        if (reached()) return;
        relax();
    }
    constexpr std::uint64_t patience_ns = 1'000'000;
    std::uint64_t since = 0, next_idle = 0;
    for (unsigned turn = 1; !reached(); ++turn) {
        sched_yield();
        if (turn % 8) continue;
        const std::uint64_t now = now_ns();
        if (!since) {
            since = now;
            next_idle = now + patience_ns;
        }
        if (now - since < patience_ns) continue;
        if (now >= next_idle) {
            idle();
            next_idle = now_ns() + patience_ns;
        }
        const timespec nap{0, 50'000};
        nanosleep(&nap, nullptr);
    }
}
