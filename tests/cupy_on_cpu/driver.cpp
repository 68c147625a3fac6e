// The few functions of CUDA's driver that CuPy calls: modules are shared objects that nvrtc.cpp made.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "device.h"

namespace {

// Of each kernel, made by compile_kernel.py: sizes of its arguments, those that are pointers negative.
using Arguments = int (*)(int* sizes);
using Entry = int (*)(unsigned blocks, unsigned threads, void** arguments, int given);

struct Function {
    std::string name;
    Arguments arguments;
    Entry entry;
};

CUresult refuse(const std::string& why) {
    std::fprintf(stderr, "emulated CUDA: %s\n", why.c_str());
    return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** name) {
    *name = error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** text) { return *text = "as emulated on the CPU", CUDA_SUCCESS; }

CUresult cuCtxGetCurrent(CUcontext* context) {
    return *context = reinterpret_cast<CUcontext>(1L + device::current()), CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* number) { return *number = device::current(), CUDA_SUCCESS; }

CUresult cuDevicePrimaryCtxGetState(CUdevice number, unsigned* flags, int* active) {
    return *flags = 0, *active = device::has_context(number), CUDA_SUCCESS;
}

// The image is the word MODULE, the bytes of a shared object as 16 digits, and that.
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    const char* text = static_cast<const char*>(image);
    if (std::strncmp(text, "MODULE", 6) != 0) return CUDA_ERROR_INVALID_IMAGE;
    const std::size_t bytes = std::stoull(std::string(text + 6, 16));
    const int file = memfd_create("kernels", 0);
    for (std::size_t done = 0; done < bytes;) {
        const ssize_t wrote = write(file, text + 22 + done, bytes - done);
        if (wrote < 0) return CUDA_ERROR_OUT_OF_MEMORY;
        done += wrote;
    }
    // Left open: the number tells one module's path from another's, by which dlopen knows them.
    void* loaded = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!loaded) return refuse(dlerror());
    return *module = reinterpret_cast<CUmodule>(loaded), CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream image;
    image << file.rdbuf();
    return file ? cuModuleLoadData(module, image.str().c_str()) : CUDA_ERROR_FILE_NOT_FOUND;
}

CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }  // kernels that are queued may still need it

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    void* library = reinterpret_cast<void*>(module);
    void* entry = dlsym(library, (std::string("entry_") + name).c_str());
    if (!entry) return CUDA_ERROR_NOT_FOUND;
    void* arguments = dlsym(library, (std::string("arguments_") + name).c_str());
    auto* made = new Function{name, reinterpret_cast<Arguments>(arguments), reinterpret_cast<Entry>(entry)};
    return *function = reinterpret_cast<CUfunction>(made), CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction handle, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                        unsigned threads_z, unsigned shared, CUstream stream, void** given, void**) {
    if (device::idle()) return CUDA_SUCCESS;
    const auto& function = *reinterpret_cast<Function*>(handle);
    const std::string of = function.name + ": ";
    if (x == 0 || x > 0x7fffffff || y != 1 || z != 1) return refuse(of + "a grid of no blocks, too many, or not in a row");
    if (threads_x == 0 || threads_x > 1024 || threads_y != 1 || threads_z != 1) return refuse(of + "no such block");
    if (shared) return refuse(of + "dynamic shared memory is not emulated");
    int sizes[64];
    const int n = function.arguments(sizes);
    auto values = std::make_shared<std::vector<std::vector<char>>>();
    for (int i = 0; i < n; ++i) {
        const char* bytes = static_cast<const char*>(given[i]);
        values->emplace_back(bytes, bytes + (sizes[i] < 0 ? -sizes[i] : sizes[i]));
        if (sizes[i] > 0) continue;
        void* address;
        std::memcpy(&address, bytes, sizeof address);
        if (!address) continue;
        const std::string argument = of + "argument " + std::to_string(i);
        if (!device::readable(address, 0)) return refuse(argument + " is no device memory");
        const int owner = device::owner(address);
        if (owner >= 0 && owner != device::current()) return refuse(argument + " is on another device");
    }
    const bool known = device::enqueue(stream, [=, entry = function.entry] {
        std::vector<void*> pointers;
        for (auto& value : *values) pointers.push_back(value.data());
        entry(x, threads_x, pointers.data(), n);
    });
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) { return *value = 1024, CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

}  // extern "C"
