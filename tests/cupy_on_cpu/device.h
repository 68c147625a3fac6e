// What the parts of the emulated CUDA share: streams as queues of work, and memory that the host cannot touch.
#pragma once

#include <cstddef>
#include <functional>

namespace device {

using Work = std::function<void()>;

int current();                                          // the calling thread's device
bool idle();                                            // kernels do nothing
bool enqueue(void* stream, Work work);                  // false: no such stream
bool readable(const void* address, std::size_t bytes);  // inside one allocation, of a device or pinned
bool has_context(int number);
int owner(const void* address);                         // the device whose memory this is; -1: none's

}  // namespace device
