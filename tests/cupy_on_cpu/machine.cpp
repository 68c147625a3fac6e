// CUDA's runtime for devices whose memory is the host's, as strict and as late as CUDA may be:
//
// - What is queued on a stream runs when somebody waits for it, and not before (EMULATED_CUDA=now: at once; idle: at
//   once, but kernels do nothing). So a missing wait is a wrong result. Streams wait for each other as CUDA says: those that block and the legacy default
//   stream for each other, the others by events alone.
// - Device memory is PROT_NONE but while a copy or a kernel runs: a host that touches it ends with SIGSEGV. Not so
//   with EMULATED_CUDA_OPEN=1, for an MPI that takes it.
// - Copies must name the direction they have, and stay inside one allocation. New memory holds huge numbers.
//
// What CuPy's own glue asks for besides is answered with cudaErrorNotSupported (build.py makes those functions).
#include "machine.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace device {

std::recursive_mutex mutex;
std::map<char*, std::size_t> pinned;
thread_local int chosen = 0;
static thread_local Shared own_default;  // cudaStreamPerThread
thread_local cudaError_t last = cudaSuccess;
static int opened = 0;

int count() {
    static const int n = std::getenv("EMULATED_CUDA_DEVICES") ? std::atoi(std::getenv("EMULATED_CUDA_DEVICES")) : 1;
    return n;
}

static bool mode_is(const char* name) {
    const char* mode = std::getenv("EMULATED_CUDA");
    return std::strcmp(mode ? mode : "late", name) == 0;
}

static bool late() {
    static const bool is = !mode_is("now") && !mode_is("idle");
    return is;
}

bool idle() {
    static const bool is = mode_is("idle");
    return is;
}

std::vector<Device>& devices() {
    static std::vector<Device> all(count());
    for (int i = 0; i < count() && !all[i].arena; ++i) {
        void* where = mmap(nullptr, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (where == MAP_FAILED) std::abort();
        all[i].arena = static_cast<char*>(where);
        all[i].legacy = std::make_shared<Stream>(Stream{i, true, {}});
    }
    return all;
}

int current() { return chosen; }

bool has_context(int number) { return devices()[number].context; }

Open::Open() {
    if (opened++ == 0) protect(PROT_READ | PROT_WRITE);
}

Open::~Open() {
    if (--opened == 0) protect(PROT_NONE);
}

void Open::protect(int how) {
    static const bool open = std::getenv("EMULATED_CUDA_OPEN") != nullptr;
    if (open) how = PROT_READ | PROT_WRITE;
    for (Device& one : devices())
        if (one.used) mprotect(one.arena, (one.used + 4095) / 4096 * 4096, how);
}

void run_until(Stream& stream, unsigned long long until) {
    while (stream.done < until && !stream.queue.empty()) {
        Work work = std::move(stream.queue.front());
        stream.queue.pop_front();
        {
            Open open;
            work();
        }
        ++stream.done;
    }
}

void finish(Stream& stream) { run_until(stream, stream.queued); }

void finish_device(int number) {
    Device& one = devices()[number];
    for (auto& [_, stream] : one.streams) finish(*stream);
    finish(*one.legacy);
    if (own_default && own_default->device == number) finish(*own_default);
}

Shared find(void* handle) {
    Device& one = devices()[chosen];
    if (handle == nullptr || handle == cudaStreamLegacy) return one.legacy;
    if (handle == cudaStreamPerThread) {
        if (!own_default || own_default->device != chosen) own_default = std::make_shared<Stream>(Stream{chosen, true, {}});
        return own_default;
    }
    for (Device& each : devices()) {
        auto found = each.streams.find(static_cast<Stream*>(handle));
        if (found != each.streams.end()) return found->second;
    }
    return nullptr;
}

static void put(const Shared& stream, Work work) {
    stream->queue.push_back(std::move(work));
    ++stream->queued;
}

static void wait_in(const Shared& stream, const Shared& for_) {
    if (stream == for_ || for_->done == for_->queued) return;
    put(stream, [for_, until = for_->queued] { run_until(*for_, until); });
}

bool enqueue(void* handle, Work work) {
    Lock lock(mutex);
    Shared stream = find(handle);
    if (!stream) return false;
    Device& one = devices()[stream->device];
    if (stream == one.legacy) {
        for (auto& [_, other] : one.streams)
            if (other->blocking) wait_in(stream, other);
        if (own_default) wait_in(stream, own_default);
    } else if (stream->blocking) {
        wait_in(stream, one.legacy);
    }
    put(stream, std::move(work));
    if (!late()) finish(*stream);
    return true;
}

int owner(const void* address) {
    for (int i = 0; i < count(); ++i) {
        char* arena = devices()[i].arena;
        if (address >= arena && address < arena + arena_bytes) return i;
    }
    return -1;
}

bool inside(const std::map<char*, std::size_t>& blocks, const void* address, std::size_t bytes) {
    char* first = static_cast<char*>(const_cast<void*>(address));
    auto next = blocks.upper_bound(first);
    if (next == blocks.begin()) return false;
    const auto& [start, size] = *std::prev(next);
    return first + bytes <= start + size;
}

bool readable(const void* address, std::size_t bytes) {
    Lock lock(mutex);
    const int number = owner(address);
    return number < 0 ? inside(pinned, address, bytes) : inside(devices()[number].live, address, bytes);
}

cudaError_t result(cudaError_t error, const char* why) {
    if (error != cudaSuccess && why) std::fprintf(stderr, "emulated CUDA: %s\n", why);
    if (error != cudaSuccess) last = error;
    return error;
}

cudaError_t bad(const char* why) { return result(cudaErrorInvalidValue, why); }

}  // namespace device
