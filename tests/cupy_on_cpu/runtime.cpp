// CUDA's runtime for devices whose memory is the host's, as strict and as late as CUDA may be:
//
// - What is queued on a stream runs when somebody waits for it, and not before (EMULATED_CUDA=now: at once). So a
//   missing wait is a wrong result. Streams wait for each other as CUDA says: those that block and the legacy default
//   stream for each other, the others by events alone.
// - Device memory is PROT_NONE but while a copy or a kernel runs: a host that touches it ends with SIGSEGV.
// - Copies must name the direction they have, and stay inside one allocation. New memory holds huge numbers.
//
// What CuPy's own glue asks for besides is answered with cudaErrorNotSupported (build.py makes those functions).
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device.h"

namespace device {

using Clock = std::chrono::steady_clock;
using Lock = std::lock_guard<std::recursive_mutex>;

constexpr std::size_t arena_bytes = 16ull << 30, granule = 512;
constexpr int garbage = 0x7F;

struct Stream {
    int device;
    bool blocking;
    std::deque<Work> queue;
    unsigned long long queued = 0, done = 0;
};
using Shared = std::shared_ptr<Stream>;

struct Event {
    bool timed, recorded = false;
    Shared stream;
    unsigned long long at = 0;
    std::shared_ptr<Clock::time_point> when = std::make_shared<Clock::time_point>();
};

struct Device {
    char* arena = nullptr;
    std::size_t used = 0;
    std::map<char*, std::size_t> live;                // address, bytes
    std::multimap<std::size_t, char*> spare;          // bytes of a freed block, address
    std::map<Stream*, Shared> streams;                // that were created
    Shared legacy;
};

static std::recursive_mutex mutex;
static std::map<char*, std::size_t> pinned;
static std::set<Event*> events;
static thread_local int chosen = 0;
static thread_local Shared own_default;  // cudaStreamPerThread
static thread_local cudaError_t last = cudaSuccess;
static int opened = 0;

static int count() {
    static const int n = std::getenv("EMULATED_CUDA_DEVICES") ? std::atoi(std::getenv("EMULATED_CUDA_DEVICES")) : 1;
    return n;
}

static bool late() {
    static const bool is = !std::getenv("EMULATED_CUDA") || std::strcmp(std::getenv("EMULATED_CUDA"), "now") != 0;
    return is;
}

static std::vector<Device>& devices() {
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

// While one lives, the devices' memory can be read and written.
struct Open {
    Open() {
        if (opened++ == 0) protect(PROT_READ | PROT_WRITE);
    }
    ~Open() {
        if (--opened == 0) protect(PROT_NONE);
    }
    static void protect(int how) {
        static const bool open = std::getenv("EMULATED_CUDA_OPEN") != nullptr;
        if (open) how = PROT_READ | PROT_WRITE;
        for (Device& one : devices())
            if (one.used) mprotect(one.arena, (one.used + 4095) / 4096 * 4096, how);
    }
};

static void run_until(Stream& stream, unsigned long long until) {
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

static void finish(Stream& stream) { run_until(stream, stream.queued); }

static void finish_device(int number) {
    Device& one = devices()[number];
    for (auto& [_, stream] : one.streams) finish(*stream);
    finish(*one.legacy);
    if (own_default && own_default->device == number) finish(*own_default);
}

static Shared find(void* handle) {
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

static bool inside(const std::map<char*, std::size_t>& blocks, const void* address, std::size_t bytes) {
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

static cudaError_t result(cudaError_t error, const char* why = nullptr) {
    if (error != cudaSuccess && why) std::fprintf(stderr, "emulated CUDA: %s\n", why);
    if (error != cudaSuccess) last = error;
    return error;
}

static cudaError_t bad(const char* why) { return result(cudaErrorInvalidValue, why); }

static cudaError_t copy(void* dst, const void* src, std::size_t bytes, cudaMemcpyKind kind, void* stream) {
    Lock lock(mutex);
    if (bytes == 0) return cudaSuccess;
    const bool to = owner(dst) >= 0, from = owner(src) >= 0;
    const bool says_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool says_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault && (to != says_to || from != says_from)) return bad("a copy's direction is not its kind");
    if ((to && !readable(dst, bytes)) || (from && !readable(src, bytes))) return bad("a copy leaves its allocation");
    const auto move = [=] { std::memcpy(dst, src, bytes); };
    bool known = true;
    if (!from && !inside(pinned, src, bytes)) {  // pageable: read before the call returns
        auto staged = std::make_shared<std::string>(static_cast<const char*>(src), bytes);
        known = enqueue(stream, [=] { std::memcpy(dst, staged->data(), bytes); });
    } else {
        known = enqueue(stream, move);
    }
    if (!known) return result(cudaErrorInvalidResourceHandle);
    if (!to && !inside(pinned, dst, bytes)) finish(*find(stream));  // pageable: written when the call returns
    return cudaSuccess;
}

}  // namespace device

using namespace device;

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
        case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
        case cudaErrorNotReady: return "cudaErrorNotReady";
        case cudaErrorNotSupported: return "cudaErrorNotSupported";
        default: return "cudaErrorUnknown";
    }
}

const char* cudaGetErrorString(cudaError_t) { return "as emulated on the CPU"; }

cudaError_t cudaGetLastError() { return std::exchange(last, cudaSuccess); }

cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }

// ---- devices

cudaError_t cudaGetDeviceCount(int* n) { return *n = count(), count() ? cudaSuccess : result(cudaErrorNoDevice); }
cudaError_t cudaGetDevice(int* number) { return *number = chosen, cudaSuccess; }

cudaError_t cudaSetDevice(int number) {
    if (number < 0 || number >= count()) return result(cudaErrorInvalidDevice);
    return chosen = number, cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    Lock lock(mutex);
    return finish_device(chosen), cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int number) {
    static const std::map<int, int> known = {  // of an H100
        {cudaDevAttrMaxThreadsPerBlock, 1024}, {cudaDevAttrMaxBlockDimX, 1024}, {cudaDevAttrMaxBlockDimY, 1024},
        {cudaDevAttrMaxBlockDimZ, 64}, {cudaDevAttrMaxGridDimX, 2147483647}, {cudaDevAttrMaxGridDimY, 65535},
        {cudaDevAttrMaxGridDimZ, 65535}, {cudaDevAttrMaxSharedMemoryPerBlock, 49152}, {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMultiProcessorCount, 132}, {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448}, {cudaDevAttrComputeCapabilityMajor, 9},
        {cudaDevAttrComputeCapabilityMinor, 0}, {cudaDevAttrUnifiedAddressing, 1}, {cudaDevAttrClockRate, 1980000},
        {cudaDevAttrMemoryClockRate, 2619000}, {cudaDevAttrL2CacheSize, 52428800}, {cudaDevAttrAsyncEngineCount, 3},
        {cudaDevAttrConcurrentKernels, 1}};
    if (number < 0 || number >= count()) return result(cudaErrorInvalidDevice);
    const auto found = known.find(attribute);
    return *value = found == known.end() ? 0 : found->second, cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* is, int number) {
    if (number < 0 || number >= count()) return result(cudaErrorInvalidDevice);
    std::memset(is, 0, sizeof *is);
    std::strcpy(is->name, "emulated on the CPU");
    is->totalGlobalMem = arena_bytes, is->warpSize = 32, is->major = 9, is->multiProcessorCount = 132;
    is->sharedMemPerBlock = 49152, is->maxThreadsPerBlock = 1024, is->l2CacheSize = 52428800;
    is->memoryBusWidth = 5120, is->pciBusID = 1 + number;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* name, int bytes, int number) {
    return std::snprintf(name, bytes, "0000:%02x:00.0", 1 + number), cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

// ---- memory

cudaError_t cudaMalloc(void** result_, size_t bytes) {
    Lock lock(mutex);
    Open open;
    Device& one = devices()[chosen];
    const std::size_t size = (bytes + granule - 1) / granule * granule;
    char* where;
    if (auto found = one.spare.lower_bound(size); found != one.spare.end() && found->first == size) {
        where = found->second;
        one.spare.erase(found);
    } else {
        if (one.used + size > arena_bytes) return result(cudaErrorMemoryAllocation);
        where = one.arena + one.used;
        one.used += size;
        Open::protect(PROT_READ | PROT_WRITE);
    }
    std::memset(where, garbage, size);
    one.live[where] = size;
    return *result_ = where, cudaSuccess;
}

cudaError_t cudaFree(void* address) {
    Lock lock(mutex);
    if (!address) return cudaSuccess;
    const int number = owner(address);
    if (number < 0) return bad("cudaFree of what is no device memory");
    finish_device(number);
    Device& one = devices()[number];
    const auto found = one.live.find(static_cast<char*>(address));
    if (found == one.live.end()) return bad("cudaFree of what was not allocated");
    one.spare.insert({found->second, found->first});
    one.live.erase(found);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** result_, size_t bytes, unsigned) {
    Lock lock(mutex);
    const std::size_t size = (std::max<std::size_t>(bytes, 1) + 4095) / 4096 * 4096;
    *result_ = std::aligned_alloc(4096, size);
    std::memset(*result_, garbage, size);
    pinned[static_cast<char*>(*result_)] = size;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void* address) {
    Lock lock(mutex);
    for (int i = 0; i < count(); ++i) finish_device(i);
    if (address && !pinned.erase(static_cast<char*>(address))) return bad("cudaFreeHost of what is not pinned");
    return std::free(address), cudaSuccess;
}

cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
    Lock lock(mutex);
    return pinned[static_cast<char*>(address)] = bytes, cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
    Lock lock(mutex);
    return pinned.erase(static_cast<char*>(address)) ? cudaSuccess : bad("cudaHostUnregister of what was not registered");
}

cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
    return *total = arena_bytes, *left = arena_bytes - devices()[chosen].used, cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* is, const void* address) {
    Lock lock(mutex);
    std::memset(is, 0, sizeof *is);
    const int number = owner(address);
    is->type = number >= 0               ? cudaMemoryTypeDevice
               : inside(pinned, address, 1) ? cudaMemoryTypeHost
                                            : cudaMemoryTypeUnregistered;
    is->device = number >= 0 ? number : is->type == cudaMemoryTypeHost ? 0 : -2;
    if (is->type != cudaMemoryTypeUnregistered) is->devicePointer = const_cast<void*>(address);
    if (is->type == cudaMemoryTypeHost) is->hostPointer = const_cast<void*>(address);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy(dst, src, bytes, kind, stream);
}

cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
    Lock lock(mutex);
    const cudaError_t done = copy(dst, src, bytes, kind, nullptr);
    if (owner(dst) < 0 || owner(src) < 0) finish(*devices()[chosen].legacy);
    return done;
}

cudaError_t cudaMemcpyPeerAsync(void* dst, int, const void* src, int, size_t bytes, cudaStream_t stream) {
    return copy(dst, src, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemcpyPeer(void* dst, int, const void* src, int, size_t bytes) {
    return cudaMemcpy(dst, src, bytes, cudaMemcpyDeviceToDevice);
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
    if (bytes == 0) return cudaSuccess;
    if (!readable(address, bytes)) return bad("cudaMemset leaves its allocation");
    const bool known = enqueue(stream, [=] { std::memset(address, value, bytes); });
    return known ? cudaSuccess : result(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaMemset(void* address, int value, size_t bytes) { return cudaMemsetAsync(address, value, bytes, nullptr); }

// ---- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
    Lock lock(mutex);
    auto made = std::make_shared<Stream>(Stream{chosen, !(flags & cudaStreamNonBlocking), {}});
    devices()[chosen].streams[made.get()] = made;
    return *handle = reinterpret_cast<cudaStream_t>(made.get()), cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithFlags(handle, cudaStreamDefault); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int) {
    return cudaStreamCreateWithFlags(handle, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    Lock lock(mutex);
    Shared stream = find(handle);
    if (!stream) return result(cudaErrorInvalidResourceHandle);
    finish(*stream);
    devices()[stream->device].streams.erase(stream.get());
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    Lock lock(mutex);
    Shared stream = find(handle);
    if (!stream) return result(cudaErrorInvalidResourceHandle);
    if (stream == devices()[stream->device].legacy) enqueue(handle, [] {});  // waits for those that block
    return finish(*stream), cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    Lock lock(mutex);
    Shared stream = find(handle);
    if (!stream) return result(cudaErrorInvalidResourceHandle);
    if (stream->done == stream->queued) return cudaSuccess;
    return run_until(*stream, stream->done + 1), cudaErrorNotReady;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* is) {
    return *is = cudaStreamCaptureStatusNone, cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
    return enqueue(handle, [=] { function(data); }) ? cudaSuccess : result(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
    Lock lock(mutex);
    auto* made = new Event{!(flags & cudaEventDisableTiming)};
    events.insert(made);
    return *handle = reinterpret_cast<cudaEvent_t>(made), cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, cudaEventDefault); }

static Event* event_of(cudaEvent_t handle) {
    auto* event = reinterpret_cast<Event*>(handle);
    return events.count(event) ? event : nullptr;
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    Lock lock(mutex);
    Event* event = event_of(handle);
    if (!event) return result(cudaErrorInvalidResourceHandle);
    events.erase(event);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
    Lock lock(mutex);
    Event* event = event_of(handle);
    if (!event) return result(cudaErrorInvalidResourceHandle);
    auto when = event->when = std::make_shared<Clock::time_point>();
    if (!enqueue(stream, [when] { *when = Clock::now(); })) return result(cudaErrorInvalidResourceHandle);
    event->stream = find(stream);
    event->at = event->stream->queued;
    return event->recorded = true, cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    Lock lock(mutex);
    Event* event = event_of(handle);
    if (!event) return result(cudaErrorInvalidResourceHandle);
    if (event->recorded) run_until(*event->stream, event->at);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
    Lock lock(mutex);
    Event* event = event_of(handle);
    if (!event) return result(cudaErrorInvalidResourceHandle);
    if (!event->recorded || event->stream->done >= event->at) return cudaSuccess;
    return run_until(*event->stream, event->stream->done + 1), cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t first, cudaEvent_t second) {
    Lock lock(mutex);
    Event *from = event_of(first), *to = event_of(second);
    if (!from || !to || !from->timed || !to->timed || !from->recorded || !to->recorded)
        return result(cudaErrorInvalidResourceHandle);
    for (Event* one : {from, to})
        if (one->stream->done < one->at) return result(cudaErrorNotReady);
    return *ms = std::chrono::duration<float, std::milli>(*to->when - *from->when).count(), cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t waited, unsigned) {
    Lock lock(mutex);
    Event* event = event_of(waited);
    if (!event) return result(cudaErrorInvalidResourceHandle);
    if (!event->recorded) return cudaSuccess;
    auto work = [other = event->stream, at = event->at] { run_until(*other, at); };
    return enqueue(handle, work) ? cudaSuccess : result(cudaErrorInvalidResourceHandle);
}

}  // extern "C"
