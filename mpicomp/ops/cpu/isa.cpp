#include "isa.h"

#include <cstdlib>

#include "errors.h"

namespace {

bool supported(Isa isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (isa == Isa::avx512) return avx2 && avx512;
    if (isa == Isa::avx2) return avx2;
#endif
    return isa == Isa::baseline;
}

Isa best() {
    for (const Isa isa : {Isa::avx512, Isa::avx2})
        if (supported(isa)) return isa;
    return Isa::baseline;
}

Isa parse(const std::string& name) {
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (name != isa_name(isa)) continue;
        if (!supported(isa)) throw InvalidArgument("instruction set " + name + " is not on this processor");
        return isa;
    }
    throw InvalidArgument("instruction set must be one of avx512, avx2, baseline, got " + name);
}

Isa& chosen() {
    static Isa isa = best();
    return isa;
}

std::string& refused() {
    static std::string problem;
    return problem;
}

}  // namespace

Isa current_isa() { return chosen(); }

void force_isa(const std::string& name) {
    chosen() = name.empty() ? best() : parse(name);
    refused().clear();
}

void refuse_isa(const std::string& problem) { refused() = problem; }

std::string isa_in_use() {
    if (!refused().empty()) throw InvalidArgument(refused());
    return isa_name(current_isa());
}

std::string isa_name(Isa isa) {
    return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "baseline";
}
