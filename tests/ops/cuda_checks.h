// What kernels do to memory, looked at access by access: GCC's -fsanitize=thread calls __tsan_read4(address) and the
// like before each of a kernel's accesses. GCC's own run time is not used: it does not know CUDA's rules
// (cuda_knowledge.h), nor so many threads.
//
// The checks find:
// - races: two threads access the same byte without an order, at least one writes, and not both accesses are atomic;
// - accesses outside both the kernel's arrays and its block's shared memory;
// - reads of shared memory before any write to it;
// - exchanges in a warp that some lanes have left;
// - deadlocks: no thread of the grid can continue;
// - undefined behaviour (this file defines the handlers that GCC's -fsanitize=undefined calls).
// The checks find a race in any order in which the two accesses run.
#pragma once

#include "cuda_knowledge.h"

#include <dlfcn.h>

#include <cstdint>
#include <set>
#include <string>

extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start, _end;  // of the library: constants, `place`

namespace checks {

enum Kind { plain, flag, change };  // a change reads, too: it comes after all changes so far, whatever else orders them

struct Access {
    unsigned block, thread, time;
    std::uint8_t bytes;  // of 8, a bit each
    bool stores;
    Kind kind;
    const char* code;

    bool atomic() const { return kind != plain; }
};

struct Granule {  // 8 bytes of memory, and who used them in this grid
    std::vector<Access> loads, stores;
};

constexpr std::uintptr_t granules = 512;  // a page
static std::unordered_map<std::uintptr_t, std::vector<Granule>> pages;
static std::vector<std::pair<std::uintptr_t, std::uintptr_t>> arrays;  // [begin, end), as launched with
static std::string found;
static std::set<std::pair<const char*, const char*>> told;
constexpr std::size_t most_told = 10;

// @...@ marks an address in the library's code; cuda_on_cpu.py replaces it by file and line of the source.
static std::string place(const char* code) {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&place), &info);
    char text[32];
    std::snprintf(text, sizeof text, "@%zx@", static_cast<std::size_t>(code - 1 - static_cast<char*>(info.dli_fbase)));
    return text;
}

static std::string one(unsigned block, unsigned thread) {
    return "thread " + std::to_string(thread) + " of block " + std::to_string(block);
}

static void tell(const char* code, const char* other, const std::string& what) {
    if (told.size() < most_told && told.insert({code, other}).second) found += what + "\n";
}

static const char* verb(const Access& access) {
    return access.kind == change ? "changes" : access.stores ? "writes" : "reads";
}

static void race(const Access& earlier, const Access& own) {
    if (told.size() == most_told || told.count({own.code, earlier.code})) return;
    const auto act = [](const Access& of) { return one(of.block, of.thread) + " " + verb(of) + " at " + place(of.code); };
    tell(own.code, earlier.code, "race: " + act(own) + " what " + act(earlier) + ", and nothing orders the two");
}

// Whether the later of two ordered accesses will conflict with all that the earlier one would.
static bool stands_for(const Access& own, const Access& earlier) {
    return own.stores >= earlier.stores && !(earlier.bytes & ~own.bytes) && earlier.atomic() >= own.atomic();
}

static void forget(std::vector<Access>& accesses, const Access& own) {
    const auto needless = [&](const Access& other) {
        const bool after = own.kind == change && other.kind == change;
        return stands_for(own, other) && (after || known(other.block, other.thread, other.time));
    };
    accesses.erase(std::remove_if(accesses.begin(), accesses.end(), needless), accesses.end());
}

static void meet(std::vector<Access>& accesses, const Access& own) {
    for (const Access& other : accesses) {
        const bool conflict = other.bytes & own.bytes && !(other.atomic() && own.atomic());
        if (conflict && !known(other.block, other.thread, other.time)) race(other, own);
    }
    if (own.stores) forget(accesses, own);
}

static void note(std::vector<Access>& accesses, const Access& own) {
    if (!own.stores && accesses.size() == accesses.capacity()) forget(accesses, own);  // now and then
    if (!accesses.empty()) {
        Access& last = accesses.back();
        if (last.block == own.block && last.thread == own.thread && stands_for(own, last)) accesses.pop_back();
    }
    accesses.push_back(own);
}

static Granule& granule_at(std::uintptr_t number) {
    auto& page = pages[number / granules];
    if (page.empty()) page.resize(granules);
    return page[number % granules];
}

enum Where { elsewhere, array, shared };

static Where where(std::uintptr_t begin, std::uintptr_t end) {
    for (const auto& [memory, bytes] : here->shared) {
        const auto first = reinterpret_cast<std::uintptr_t>(memory);
        if (first <= begin && end <= first + bytes) return shared;
    }
    for (const auto& [first, last] : arrays)
        if (first <= begin && end <= last) return array;
    return elsewhere;
}

static void access(const volatile void* address, std::size_t bytes, bool stores, Kind kind, const void* code) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address), end = begin + bytes;
    const auto inside = [&](const void* memory, std::size_t size) {
        return begin - reinterpret_cast<std::uintptr_t>(memory) < size;
    };
    if (!here || inside(stack, emulator::stack_bytes) || inside(&__ehdr_start, &_end - &__ehdr_start)) return;
    Access own = {block, thread, now->time, 0, stores, kind, static_cast<const char*>(code)};
    const Where place_of = where(begin, end);
    if (place_of == elsewhere)
        tell(own.code, nullptr, "outside: " + one(block, thread) + " " + verb(own) + " at " + place(own.code) + " " +
             std::to_string(bytes) + " bytes that are in no array it was given, nor in its shared memory");
    for (std::uintptr_t at = begin; at < end;) {
        const std::uintptr_t number = at / 8, next = std::min(end, (number + 1) * 8);
        own.bytes = ((1u << (next - at)) - 1) << at % 8;
        Granule& granule = granule_at(number);
        std::uint8_t written = 0;
        for (const Access& store : granule.stores) written |= store.bytes;
        if (place_of == shared && (!stores || kind == change) && own.bytes & ~written)
            tell(own.code, nullptr, "unwritten: " + one(block, thread) + " " + verb(own) + " at " + place(own.code) +
                 " shared memory where nothing has been written");
        meet(granule.stores, own);
        if (stores) meet(granule.loads, own);
        note(stores ? granule.stores : granule.loads, own);
        at = next;
    }
}

inline void launch() {
    pages.clear();
    flags.clear();
}

inline void enter(Block& of, unsigned number, Thread& own, unsigned thread_number, const char* own_stack) {
    here = &of, now = &own, block = number, thread = thread_number, stack = own_stack;
}

inline void leave() { here = nullptr; }

inline void share(char* memory, std::size_t bytes) { here->shared.emplace_back(memory, bytes); }

inline void end(Block& of) {  // its memory may be another's next
    for (const auto& [memory, bytes] : of.shared)
        for (char* at = memory; at < memory + bytes; at += 8) granule_at(reinterpret_cast<std::uintptr_t>(at) / 8) = {};
}

inline void atomic(const volatile void* address, unsigned bytes, const void* code) {
    access(address, bytes, true, change, code);
    look_at(address);
    raise(address);
}

inline void read_flag(const volatile void* address, std::size_t bytes, const void* code) {
    if (!here) return;
    emulator::pause();
    access(address, bytes, false, flag, code);
    look_at(address);
}

inline void write_flag(const volatile void* address, std::size_t bytes, const void* code) {
    if (!here) return;
    emulator::pause();
    emulator::progress = true;
    access(address, bytes, true, flag, code);
    raise(address);
}

inline void exchange(int lanes) {
    if (lanes == emulator::lanes) return;
    tell(nullptr, nullptr, "left: " + one(block, thread) + " exchanges in a warp that lanes have left");
}

inline void stands_still(unsigned waiting, unsigned block) {
    found += "deadlock: " + std::to_string(waiting) + " threads of block " + std::to_string(block) + " wait for ever\n";
}

struct Location {
    const char* file;
    unsigned line;
};

static void undefined(const Location& at, const char* what) {
    std::string file = at.file;
    file.erase(0, file.rfind('/') + 1);
    tell(at.file + at.line, nullptr, std::string("undefined: ") + what + " at " + file + ":" + std::to_string(at.line));
}

}  // namespace checks

#define HERE __builtin_return_address(0)
#define SEEN(name, bytes, stores) \
    extern "C" void name(void* address) { checks::access(address, bytes, stores, checks::plain, HERE); }
#define SEEN_ALL(bytes) \
    SEEN(__tsan_read##bytes, bytes, false) SEEN(__tsan_write##bytes, bytes, true) \
    SEEN(__tsan_unaligned_read##bytes, bytes, false) SEEN(__tsan_unaligned_write##bytes, bytes, true)
SEEN_ALL(1) SEEN_ALL(2) SEEN_ALL(4) SEEN_ALL(8) SEEN_ALL(16)
SEEN(__tsan_volatile_write1, 1, true) SEEN(__tsan_volatile_write2, 2, true)
extern "C" void __tsan_volatile_read4(void* flag) { checks::read_flag(flag, 4, HERE); }
extern "C" void __tsan_volatile_write4(void* flag) { checks::write_flag(flag, 4, HERE); }
extern "C" void __tsan_volatile_read8(void* flag) { checks::read_flag(flag, 8, HERE); }
extern "C" void __tsan_volatile_write8(void* flag) { checks::write_flag(flag, 8, HERE); }
extern "C" void __tsan_read_range(void* first, std::size_t n) { checks::access(first, n, false, checks::plain, HERE); }
extern "C" void __tsan_write_range(void* first, std::size_t n) { checks::access(first, n, true, checks::plain, HERE); }
extern "C" void __tsan_init() {}

#define UNDEFINED(name) \
    extern "C" void __ubsan_handle_##name(const checks::Location* at) { checks::undefined(*at, #name); }
UNDEFINED(add_overflow) UNDEFINED(sub_overflow) UNDEFINED(mul_overflow) UNDEFINED(negate_overflow)
UNDEFINED(divrem_overflow) UNDEFINED(shift_out_of_bounds) UNDEFINED(out_of_bounds) UNDEFINED(vla_bound_not_positive)
UNDEFINED(type_mismatch_v1) UNDEFINED(load_invalid_value) UNDEFINED(pointer_overflow) UNDEFINED(invalid_builtin)
UNDEFINED(nonnull_arg) UNDEFINED(builtin_unreachable) UNDEFINED(missing_return)

// The arrays that the next grids may use: where they begin, and how many bytes they have.
extern "C" __attribute__((visibility("default")))
void allow(const std::uintptr_t* begins, const std::uintptr_t* bytes, int n) {
    checks::arrays.clear();
    for (int i = 0; i < n; ++i) checks::arrays.emplace_back(begins[i], begins[i] + bytes[i]);
}

// Return the findings since the previous call as lines of text, or "" if there are none.
extern "C" __attribute__((visibility("default"))) const char* findings() {
    static std::string given;
    given = checks::found;
    checks::found.clear();
    checks::told.clear();
    return given.c_str();
}
