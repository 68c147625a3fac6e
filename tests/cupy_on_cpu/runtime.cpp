// CUDA's runtime: devices, memory, copies. machine.cpp says what kind of device it is.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "machine.h"

namespace device {

constexpr std::size_t granule = 512;
static int garbage() { return idle() ? 0 : 0x7F; }  // counts that no kernel writes are zero

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
    Lock lock(mutex);
    devices()[number].context = true;
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
    one.context = true;
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
    std::memset(where, garbage(), size);
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
    std::memset(*result_, garbage(), size);
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
    devices()[chosen].context = true;
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

}  // extern "C"
