#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "errors.h"

namespace {

constexpr std::size_t fewest_parts = 4;  // below, waking another thread takes as long as the work
constexpr int most_threads = 1024;

// One call. Neighbouring parts are handed out together, fewer of them towards the end: memory is read in long runs, and
// a thread that lost its CPU to another process holds few.
class Job {
public:
    Job(std::size_t count, void (*work)(void*, std::size_t), void* context, std::size_t team)
        : count(count), team(team), work(work), context(context) {}

    void run() {
        try {
            for (std::size_t begin, end; take(&begin, &end);)
                for (std::size_t part = begin; part < end; ++part) work(context, part);
        } catch (...) {
            const std::lock_guard<std::mutex> guard(failing);
            if (!failure) failure = std::current_exception();
            next.store(count);
        }
    }

    void rethrow() const {
        if (failure) std::rethrow_exception(failure);
    }

private:
    bool take(std::size_t* begin, std::size_t* end) {
        *begin = next.load(std::memory_order_relaxed);
        do {
            if (*begin >= count) return false;
            *end = *begin + std::max<std::size_t>(1, (count - *begin) / (4 * team));
        } while (!next.compare_exchange_weak(*begin, *end, std::memory_order_relaxed));
        return true;
    }

    std::size_t count, team;
    void (*work)(void*, std::size_t);
    void* context;
    std::atomic<std::size_t> next{0};
    std::mutex failing;
    std::exception_ptr failure;
};

// Threads that sleep between calls and end with the process: nobody waits for them at exit.
class Pool {
public:
    Pool() { threads.reserve(most_threads); }

    // False if another thread is using the pool, or this one does.
    bool run(Job& job, std::size_t team, const cpu_set_t& cpus) {
        if (busy.test_and_set(std::memory_order_acquire)) return false;
        hire(team - 1, cpus);
        {
            const std::lock_guard<std::mutex> guard(mutex);
            current = &job;
            helpers = team - 1;
            ++number;
        }
        begun.notify_all();
        job.run();
        {
            std::unique_lock<std::mutex> lock(mutex);
            current = nullptr;
            finished.wait(lock, [&] { return active == 0; });
        }
        busy.clear(std::memory_order_release);
        return true;
    }

private:
    // As many helpers as are missing, or the system allows, on the CPUs that the caller may use.
    void hire(std::size_t wanted, const cpu_set_t& cpus) {
        if (!CPU_EQUAL(&cpus, &allowed))
            for (const pthread_t thread : threads) pthread_setaffinity_np(thread, sizeof cpus, &cpus);
        allowed = cpus;
        if (threads.size() >= wanted) return;
        sigset_t all, before;  // signals are for the interpreter's threads
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            while (threads.size() < wanted) {
                std::thread thread(&Pool::help, this, threads.size());
                threads.push_back(thread.native_handle());
                thread.detach();
            }
        } catch (const std::system_error&) {
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    void help(std::size_t index) {
        std::uint64_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            begun.wait(lock, [&] { return current && number != seen && index < helpers; });
            seen = number;
            Job& job = *current;
            ++active;
            lock.unlock();
            job.run();
            lock.lock();
            if (--active == 0) finished.notify_one();
        }
    }

    std::atomic_flag busy = ATOMIC_FLAG_INIT;
    std::mutex mutex;
    std::condition_variable begun, finished;
    Job* current = nullptr;  // this and what follows: under the mutex
    std::uint64_t number = 0;
    std::size_t helpers = 0, active = 0;
    std::vector<pthread_t> threads;  // this and what follows: of the thread that made the pool busy
    cpu_set_t allowed{};
};

std::atomic<Pool*> pool{nullptr};  // never destroyed: its threads outlive static objects

// A child has none of its parent's threads: it makes a pool of its own.
Pool& the_pool() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr); });
    (void)registered;
    Pool* found = pool.load(std::memory_order_acquire);
    if (found) return *found;
    Pool* made = new Pool;
    if (pool.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made;
    delete made;
    return *found;
}

struct Settings {
    std::atomic<int> wanted{0}, forced{0};  // 0: not set
    std::atomic<double> crowd{1};
    std::atomic<const std::string*> problem{nullptr};
};

Settings& settings() {
    static Settings all;
    return all;
}

// The CPUs that this thread may use; none if they are more than a set holds.
cpu_set_t own_cpus() {
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) CPU_ZERO(&cpus);
    return cpus;
}

int threads_on(const cpu_set_t& cpus) {
    if (const int forced = settings().forced) return forced;
    const int most = std::max(1, CPU_COUNT(&cpus));
    if (const std::string* problem = settings().problem) throw InvalidArgument(*problem);
    if (const int wanted = settings().wanted) return std::min(wanted, most);
    return std::max(1, static_cast<int>(most / settings().crowd + 1e-6));
}

}  // namespace

int threads_in_use() { return threads_on(own_cpus()); }

void set_threads(const std::string& number) {
    const bool is_number = !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
    const std::size_t digit = number.find_first_not_of('0');
    if (!number.empty() && (!is_number || digit == std::string::npos))
        throw InvalidArgument("MPICOMP_NUM_THREADS must be a number of threads, 1 or more, got '" + number +
                              "': set or unset it");
    if (number.empty()) settings().wanted = 0;
    else settings().wanted = number.size() - digit > 4 ? most_threads : std::min(most_threads, std::stoi(number));
    settings().problem = nullptr;
}

void refuse_threads(const std::string& problem) { settings().problem = new std::string(problem); }

void set_crowd(double ranks_per_cpu) { settings().crowd = std::max(1.0, ranks_per_cpu); }

void force_threads(int number) { settings().forced = std::min(most_threads, std::max(0, number)); }

bool is_shared(std::size_t n, std::size_t grain) {
    return part_count(n, grain) >= fewest_parts && threads_in_use() > 1;
}

void run_parts(std::size_t count, void (*work)(void* context, std::size_t part), void* context) {
    if (count >= fewest_parts) {
        const cpu_set_t cpus = own_cpus();
        const std::size_t team = std::min(count, static_cast<std::size_t>(threads_on(cpus)));
        if (team > 1) {
            Job job(count, work, context, team);
            if (the_pool().run(job, team, cpus)) return job.rethrow();
        }
    }
    for (std::size_t part = 0; part < count; ++part) work(context, part);
}
