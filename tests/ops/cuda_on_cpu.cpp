// The machine that cuda_on_cpu.h promises. Each thread of a block is a fibre: it runs until it has to wait, then
// another one runs. ucontext gives it a stack, _setjmp and _longjmp switch, which ask nothing of the system. Warp
// exchanges write to a slot, wait for the warp, and read. Threads that have returned no longer count at a barrier.
//
// By default blocks run one after the other, and threads in turn. After `schedule` several blocks are resident at once.
// The order in which they begin, the next block to continue, and its first thread are then random. A grid without any
// thread that can continue is a deadlock in the kernel: not all threads reach a barrier, or a block waits for one that
// has not begun.
#include "cuda_on_cpu.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace emulator {
constexpr std::size_t stack_bytes = 64 << 10;
#ifndef MOST_THREADS
#define MOST_THREADS 256
#endif
constexpr unsigned most_threads = MOST_THREADS;  // of a block
void pause();
static bool progress;
}  // namespace emulator

#ifdef CHECKED
#include "cuda_checks.h"
#else
namespace checks {
struct Thread {};
struct Block {};
inline void launch() {}
inline void enter(Block&, unsigned, Thread&, unsigned, const char*) {}
inline void leave() {}
inline void arrive(Block&) {}
inline void release(Block&) {}
inline void share(char*, std::size_t) {}
inline void end(Block&) {}
inline void fence() {}
inline void atomic(const volatile void*, unsigned, const void*) {}
inline void exchange(int) {}
inline void stands_still(unsigned waiting, unsigned block) {
    std::fprintf(stderr, "deadlock: %u threads of block %u wait for each other\n", waiting, block);
    std::abort();
}
}  // namespace checks
#endif

namespace emulator {

struct Barrier {
    int members = 0, arrived = 0;
    long generation = 0;
};

struct Fibre {
    ucontext_t context;
    jmp_buf place;  // where it waits
    bool begun = false, done = false;
    const Barrier* waits_for = nullptr;  // in this generation
    long generation;
    unsigned long long slots[2];  // for warp exchanges in turn
    checks::Thread checked;
};

struct Block {
    unsigned number;
    std::unique_ptr<char[]> stacks;
    std::vector<Fibre> fibres;
    std::vector<Barrier> warps;
    Barrier all;
    std::map<const void*, std::unique_ptr<char[]>> shared;
    checks::Block checked;
};

Place place;
static unsigned resident = 1;  // blocks at once
static bool by_chance = false;
static std::mt19937_64 chance;
static unsigned first_block = 0, most_blocks = ~0u;  // of a grid, those that are run
static Block* block;                                 // that runs, and its thread
static Fibre* fibre;
static jmp_buf scheduler;
static void (*body)(void**);
static void** arguments;

static unsigned draw(unsigned n) { return by_chance ? chance() % n : 0; }

void pause() {
    if (_setjmp(fibre->place) == 0) _longjmp(scheduler, 1);
}

static bool release_if_full(Barrier& barrier) {
    if (barrier.arrived < barrier.members || barrier.arrived == 0) return false;
    barrier.arrived = 0;
    ++barrier.generation;
    if (&barrier == &block->all) checks::release(block->checked);
    return progress = true;
}

static void wait(Barrier& barrier) {
    fibre->waits_for = &barrier;
    fibre->generation = barrier.generation;
    ++barrier.arrived;
    if (!release_if_full(barrier)) pause();
}

static Barrier& warp() { return block->warps[place.thread.x / lanes]; }

void wait_for_block() {
    checks::arrive(block->checked);
    wait(block->all);
}

// Every lane hands in a value; then all slots of the warp stand there until the exchange after the next.
static const Fibre* exchange(unsigned long long value, int& turn) {
    turn = warp().generation % 2;
    fibre->slots[turn] = value;
    checks::exchange(warp().members);
    wait(warp());
    return &block->fibres[place.thread.x / lanes * lanes];
}

unsigned long long from_lane(unsigned source, unsigned long long value) {
    int turn;
    const Fibre* of_warp = exchange(value, turn);
    return of_warp[source % lanes].slots[turn];
}

unsigned ballot(bool flag) {
    int turn;
    const Fibre* of_warp = exchange(flag, turn);
    unsigned raised = 0;
    for (int lane = 0; lane < lanes; ++lane) raised |= static_cast<unsigned>(of_warp[lane].slots[turn] != 0) << lane;
    return raised;
}

int of_all_lanes(int value, bool largest) {
    int turn;
    const Fibre* of_warp = exchange(static_cast<unsigned>(value), turn);
    for (int lane = 0; lane < lanes; ++lane) {
        const int other = static_cast<int>(of_warp[lane].slots[turn]);
        value = largest ? std::max(value, other) : std::min(value, other);
    }
    return value;
}

void fence() {
    checks::fence();
    if (by_chance) pause();
}

void atomic(const volatile void* address, unsigned bytes, const void* code) {
    if (by_chance) pause();
    progress = true;
    checks::atomic(address, bytes, code);
}

void* shared(const void* variable, std::size_t bytes) {
    auto& memory = block->shared[variable];
    if (!memory) {
        memory.reset(new char[bytes + 64]);  // a margin: writes beyond the end do no harm
        std::memset(memory.get(), 0x7F, bytes);  // huge numbers, until it is written
        checks::share(memory.get(), bytes);
    }
    return memory.get();
}

// What a fibre does: for ever, one block's thread after another's.
static void run_fibre() {
    for (;;) {
        body(arguments);
        fibre->done = progress = true;
        for (Barrier* barrier : {&warp(), &block->all}) {
            --barrier->members;
            release_if_full(*barrier);
        }
        pause();
    }
}

// Let a fibre run until it waits or is done.
static void resume(Fibre& next) {
    fibre = &next;
    fibre->waits_for = nullptr;
    if (_setjmp(scheduler) != 0) return;
    if (fibre->begun) _longjmp(fibre->place, 1);
    fibre->begun = true;
    setcontext(&fibre->context);
}

static std::vector<std::unique_ptr<Block>> spare;  // that have ended: what they take to make is used again

static std::unique_ptr<Block> begin(unsigned number, unsigned n) {
    std::unique_ptr<Block> made;
    if (spare.empty()) {
        made = std::make_unique<Block>();
        made->stacks.reset(new char[most_threads * stack_bytes]);
        made->fibres.resize(most_threads);
        for (unsigned t = 0; t < most_threads; ++t) {
            ucontext_t& context = made->fibres[t].context;
            getcontext(&context);
            context.uc_stack.ss_sp = &made->stacks[t * stack_bytes];
            context.uc_stack.ss_size = stack_bytes;
            context.uc_link = nullptr;  // it never returns
            makecontext(&context, run_fibre, 0);
        }
    } else {
        made = std::move(spare.back());
        spare.pop_back();
    }
    made->number = number;
    made->warps.assign(most_threads / lanes, {});
    made->all = {};
    made->shared.clear();
    made->checked = {};
    for (unsigned t = 0; t < n; ++t) {
        Fibre& fibre = made->fibres[t];
        fibre.done = false, fibre.waits_for = nullptr, fibre.checked = {};
        ++made->all.members;
        ++made->warps[t / lanes].members;
    }
    return made;
}

// Every thread of a block that need not wait goes on.
static void go_round(Block& own, unsigned n) {
    block = &own;
    place.block = {own.number, 0, 0};
    const unsigned first = draw(n), step = draw(2) ? n - 1 : 1;
    for (unsigned i = 0; i < n; ++i) {
        const unsigned t = (first + static_cast<unsigned long long>(i) * step) % n;
        Fibre& next = own.fibres[t];
        if (next.done || (next.waits_for && next.waits_for->generation == next.generation)) continue;
        place.thread = {t, 0, 0};
        checks::enter(own.checked, own.number, next.checked, t, &own.stacks[t * stack_bytes]);
        resume(next);
        checks::leave();
    }
}

int run(void (*kernel)(void**), unsigned blocks, unsigned n, void** args) {
    body = kernel, arguments = args;
    place.blocks = {blocks, 1, 1}, place.threads = {n, 1, 1};
    checks::launch();
    std::vector<unsigned> waiting(std::min(blocks - std::min(first_block, blocks), most_blocks));
    std::iota(waiting.rbegin(), waiting.rend(), first_block);
    if (by_chance) std::shuffle(waiting.begin(), waiting.end(), chance);
    std::vector<std::unique_ptr<Block>> active;
    const int patience = by_chance ? 10000 : 1;  // rounds: a thread that looks at a flag again gets no further in each
    for (int idle = 0; idle < patience;) {
        for (; active.size() < resident && !waiting.empty(); waiting.pop_back())
            active.push_back(begin(waiting.back(), n));
        if (active.empty()) return 0;
        auto& own = active[draw(active.size())];
        for (unsigned rounds = 1 + draw(8); rounds && own->all.members; --rounds) {
            progress = false;
            go_round(*own, n);
            idle = progress ? 0 : idle + 1;
        }
        if (own->all.members) continue;
        checks::end(own->checked);
        spare.push_back(std::move(own));
        own = std::move(active.back());
        active.pop_back();
    }
    checks::stands_still(active[0]->all.members, active[0]->number);
    return 1;
}

}  // namespace emulator

#define exported extern "C" __attribute__((visibility("default")))

// Of the next grids run only these blocks: what a huge grid does at its end, without what comes before.
exported void window(unsigned first, unsigned most) {
    emulator::first_block = first;
    emulator::most_blocks = most;
}

// In the next grids `resident` blocks are there at once, and chance says what goes on.
exported void schedule(unsigned resident, unsigned long long seed) {
    emulator::resident = resident;
    emulator::by_chance = true;
    emulator::chance.seed(seed);
}
