// One kernel source, three machine codes: which instruction set a call runs with.
//
// A kernel is an ordinary function template marked KERNEL. dispatch<kernel>(arguments...) inlines it into a
// wrapper that is compiled for AVX-512, AVX2 or the baseline, where the compiler vectorises its loops for that
// target. Contraction to fused multiply-add is off (setup.py), so all three give the same bits.
#pragma once

#include <string>

#define KERNEL inline __attribute__((always_inline))
#define KERNEL_LAMBDA __attribute__((always_inline))  // else a lambda is compiled for the baseline

enum class Isa { baseline, avx2, avx512 };

Isa current_isa();                        // chosen once: the best of this machine, or MPICOMP_ISA if set
void force_isa(const std::string& name);  // for tests; refuses what the machine does not have
void refuse_isa(const std::string& problem);  // what isa_in_use() raises; operations use the best meanwhile
std::string isa_in_use();
std::string isa_name(Isa isa);

#if defined(__x86_64__)
#define TARGET_AVX2 __attribute__((target("avx2,f16c,bmi,bmi2,popcnt,lzcnt")))
#define TARGET_AVX512                                                                                     \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,bmi,bmi2,popcnt,lzcnt,"                \
                          "prefer-vector-width=512")))

template <auto kernel, class... Arguments>
TARGET_AVX512 __attribute__((noinline)) auto run_avx512(Arguments... arguments) {
    return kernel(arguments...);
}

template <auto kernel, class... Arguments>
TARGET_AVX2 __attribute__((noinline)) auto run_avx2(Arguments... arguments) {
    return kernel(arguments...);
}
#endif

template <auto kernel, class... Arguments>
auto dispatch(Arguments... arguments) {
#if defined(__x86_64__) && !defined(MPICOMP_ONE_COPY)  // defined for the sanitizers, which see the source, not the code
    switch (current_isa()) {
        case Isa::avx512: return run_avx512<kernel>(arguments...);
        case Isa::avx2: return run_avx2<kernel>(arguments...);
        case Isa::baseline: break;
    }
#endif
    return kernel(arguments...);
}
