// Memory of long arrays, kept for the next ones: the system clears every page that it hands out.
#include <pthread.h>
#include <pybind11/numpy.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <list>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "bind.h"
#include "kept_memory.h"

namespace {

constexpr std::size_t cache_line = 64, huge_page = std::size_t{2} << 20;
constexpr std::size_t kept_from = std::size_t{1} << 14;  // bytes of memory that is kept
constexpr std::size_t any_size = std::numeric_limits<std::size_t>::max();

void* aligned(std::size_t boundary, std::size_t size) {
    void* at = nullptr;
    if (posix_memalign(&at, boundary, size)) throw std::bad_alloc();
    return at;
}

// A short block on a cache line's boundary: malloc has such sizes at hand, posix_memalign searches. What malloc gave stands
// in front of the block.
void* short_block(std::size_t size) {
    void* const given = std::malloc(size + cache_line);
    if (given == nullptr) throw std::bad_alloc();
    const auto end = reinterpret_cast<std::uintptr_t>(given) + cache_line;
    auto* const at = reinterpret_cast<void**>(end - end % cache_line);  // malloc's own boundary leaves room for a pointer
    at[-1] = given;
    return at;
}

void free_short(void* at) {
    if (at != nullptr) std::free(static_cast<void**>(at)[-1]);
}

// Freed blocks wait for the next array of their size, the latest first. With those in use they are at most twice as many
// bytes as were ever in use at once: the oldest go back to the system.
class LongMemory {
    struct Part {
        void* at;
        std::size_t size;
    };

    std::mutex mutex_;
    std::list<Part> waiting_;  // the oldest first
    std::size_t in_use_ = 0, most_in_use_ = 0, waits_ = 0;

    static void* allocate(std::size_t size) {
        const bool huge = size >= 2 * huge_page;
        void* const at = aligned(huge ? huge_page : cache_line, size);
#if defined(__linux__)
        if (huge) madvise(at, size, MADV_HUGEPAGE);  // a wish
#endif
        return at;
    }

    // Makes room for `more` bytes.
    void free_oldest(std::size_t more) {
#if defined(__SANITIZE_ADDRESS__)
        constexpr bool keeps = false;  // so that a use after the end is found
#else
        constexpr bool keeps = true;
#endif
        const std::size_t used = in_use_ + more, most = std::max(most_in_use_, used);
        while (!waiting_.empty() && !(keeps && used + waits_ <= 2 * most)) {
            std::free(waiting_.front().at);
            waits_ -= waiting_.front().size;
            waiting_.pop_front();
        }
    }

public:
    // At least nbytes, in eighths of a power of two, so that arrays of about a length share blocks.
    static std::size_t size_of(std::size_t nbytes) {
        std::size_t step = cache_line;
        while (16 * step <= nbytes) step *= 2;
        return std::max(step, (nbytes + step - 1) / step * step);
    }

    void* take(std::size_t size) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto same = [size](const Part& part) { return part.size == size; };
        const auto found = std::find_if(waiting_.rbegin(), waiting_.rend(), same);
        void* at = nullptr;
        if (found == waiting_.rend()) {
            free_oldest(size);
            at = allocate(size);
        } else {
            at = found->at;
            waits_ -= size;
            waiting_.erase(std::next(found).base());
        }
        in_use_ += size;
        most_in_use_ = std::max(most_in_use_, in_use_);
        return at;
    }

    void give(void* at, std::size_t size) {
        const std::lock_guard<std::mutex> lock(mutex_);
        in_use_ -= size;
        waits_ += size;
        waiting_.push_back({at, size});
        free_oldest(0);
    }

    std::size_t waits() const { return waits_; }
    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }
};

LongMemory& long_memory() {
    static LongMemory* const memory = new LongMemory;  // never destroyed: arrays may outlive the module
    // A child has none of its parent's threads, so none of these may hold the lock while it is made.
    static const int registered =
        pthread_atfork([] { memory->lock(); }, [] { memory->unlock(); }, [] { memory->unlock(); });
    (void)registered;
    return *memory;
}

}  // namespace

KeptMemory::KeptMemory(std::size_t nbytes) {
    if (nbytes > any_size / 32) throw std::bad_alloc();
    const std::size_t size = LongMemory::size_of(nbytes);
    at_ = size < kept_from ? short_block(size) : long_memory().take(size);
    size_ = size;
}

KeptMemory::~KeptMemory() {
    if (size_ >= kept_from) long_memory().give(at_, size_);
    else free_short(at_);
}

void bind_memory(py::module_& m) {
    m.def("empty_long", [](std::size_t n, const py::dtype& dtype) {
        const std::size_t itemsize = dtype.itemsize();
        if (n > any_size / itemsize) throw std::bad_alloc();
        auto* memory = new KeptMemory(n * itemsize);
        const py::capsule owner(memory, [](void* one) { delete static_cast<KeptMemory*>(one); });
        return py::array(dtype, {static_cast<py::ssize_t>(n)}, {static_cast<py::ssize_t>(itemsize)}, memory->data(),
                         owner);
    }, py::arg("n"), py::arg("dtype"), "A vector that is not initialised, of memory that earlier ones have left.");

    m.def("waiting_nbytes", [] { return long_memory().waits(); }, "Bytes of memory that earlier vectors have left.");
}
