// The devices, their streams and their memory, for runtime.cpp and streams.cpp (machine.cpp says what is special).
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device.h"

namespace device {

using Lock = std::lock_guard<std::recursive_mutex>;

constexpr std::size_t arena_bytes = 16ull << 30;

struct Stream {
    int device;
    bool blocking;
    std::deque<Work> queue;
    unsigned long long queued = 0, done = 0;
};
using Shared = std::shared_ptr<Stream>;

struct Device {
    char* arena = nullptr;
    std::size_t used = 0;
    bool context = false;  // some thread has made it its device (CUDA 12 and newer), or used its memory
    std::map<char*, std::size_t> live;        // address, bytes
    std::multimap<std::size_t, char*> spare;  // bytes of a freed block, address
    std::map<Stream*, Shared> streams;        // that were created
    Shared legacy;
};

// While one lives, the devices' memory can be read and written.
struct Open {
    Open();
    ~Open();
    static void protect(int how);
};

extern std::recursive_mutex mutex;
extern std::map<char*, std::size_t> pinned;  // address, bytes
extern thread_local int chosen;              // device
extern thread_local cudaError_t last;

int count();
std::vector<Device>& devices();
Shared find(void* stream);  // nullptr: no such stream
void run_until(Stream& stream, unsigned long long until);
void finish(Stream& stream);
void finish_device(int number);
bool inside(const std::map<char*, std::size_t>& blocks, const void* address, std::size_t bytes);
cudaError_t result(cudaError_t error, const char* why = nullptr);  // remembered, and said, where it is one
cudaError_t bad(const char* why);

}  // namespace device
