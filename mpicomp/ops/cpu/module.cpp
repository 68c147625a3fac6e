// The extension module mpicomp.ops._cpu: every op family, the errors, and which instruction set is in use.
#include <pybind11/pybind11.h>

#include <cstdlib>

#include "arrays.h"
#include "bind.h"
#include "block_codes.h"
#include "isa.h"
#include "pool.h"

namespace {

void raise(const char* class_name, const std::exception& error) {
    py::set_error(py::module_::import("mpicomp.errors").attr(class_name), error.what());
}

void translate(std::exception_ptr pointer) {
    try {
        if (pointer) std::rethrow_exception(pointer);
    } catch (const InvalidArgument& error) {
        raise("InvalidArgument", error);
    } catch (const BufferRefused& error) {
        raise("BufferRefused", error);
    } catch (const RankLeft& error) {
        raise("RankLeft", error);
    }
}

}  // namespace

PYBIND11_MODULE(_cpu, m) {
    m.doc() = "Compiled CPU operations of mpicomp; mpicomp.ops.cpu is their public face.";
    py::register_local_exception_translator(&translate);
    bind_reduce(m);
    bind_half(m);
    bind_chunk_max(m);
    bind_threshold(m);
    bind_top_k(m);
    bind_gather(m);
    bind_update(m);
    bind_measure(m);
    bind_union(m);
    bind_lists(m);
    bind_memory(m);
    bind_low_rank(m);
    bind_quantise(m);
    bind_coded(m);
    bind_natural(m);
    bind_norms(m);
    bind_signs(m);
    bind_levels(m);
    bind_bounded(m);
    bind_block_codes(m);
    bind_random(m);
    bind_moments(m);
    bind_bin_select(m);
    bind_array_lists(m);
    bind_sketch(m);
    bind_node(m);
    bind_plain(m);
    m.def("isa", &isa_in_use, "The instruction set in use, avx512, avx2 or baseline, or the error in MPICOMP_ISA.");
    m.def("force_isa", &force_isa, py::arg("name"), "Use this instruction set; '' for the best. For tests.");
    m.def("set_index_limit", [](std::int64_t n) { index_limit() = n; }, py::arg("n"),
          "Vectors longer than n get 64-bit indices. For tests.");
    m.def("threads", &threads_in_use, "The number of threads that an operation on long arrays may use now.");
    m.def("set_threads", &set_threads, py::arg("number"),
          "Use so many threads, but no more than CPUs; '' for this rank's share of them.");
    m.def("set_crowd", &set_crowd, py::arg("ranks_per_cpu"), "So many ranks share a CPU of this one, on average.");
    m.def("force_threads", &force_threads, py::arg("number"),
          "Use so many threads, however many CPUs there are; 0 for the default. For tests.");
    // What these refuse is not raised now: other ranks may already wait for this one.
    if (const char* number = std::getenv("MPICOMP_NUM_THREADS")) {
        try {
            set_threads(number);
        } catch (const InvalidArgument& error) {
            refuse_threads(error.what());
        }
    }
    if (const char* name = std::getenv("MPICOMP_ISA"); name && *name) {
        try {
            force_isa(name);
        } catch (const InvalidArgument& error) {
            refuse_isa("MPICOMP_ISA: " + std::string(error.what()) + ": set or unset it");
        }
    }
}
