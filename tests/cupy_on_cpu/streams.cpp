// CUDA's runtime: streams and events.
#include <chrono>
#include <set>

#include "machine.h"

namespace device {

using Clock = std::chrono::steady_clock;

struct Event {
    bool timed, recorded = false;
    Shared stream;
    unsigned long long at = 0;
    std::shared_ptr<Clock::time_point> when = std::make_shared<Clock::time_point>();
};

static std::set<Event*> events;

}  // namespace device

using namespace device;

extern "C" {

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
