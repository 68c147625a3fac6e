// NVRTC: sources go through compile_kernel.py, which has g++ compile them for the machine of tests/ops/cuda_on_cpu.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

extern char** environ;

namespace {

struct Program {
    std::string source, log, image;
    std::vector<std::string> names, lowered;
};

std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

void write_lines(const std::string& path, const std::vector<std::string>& lines) {
    std::ofstream file(path);
    for (const auto& line : lines) file << line << "\n";
}

}  // namespace

#define VISIBLE extern "C" __attribute__((visibility("default")))

enum { fine = 0, invalid_program = 4, compilation = 6, no_such_name = 11 };  // nvrtcResult

VISIBLE const char* nvrtcGetErrorString(int result) { return result == compilation ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }

VISIBLE int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, fine; }

VISIBLE int nvrtcGetNumSupportedArchs(int* n) { return *n = 1, fine; }
VISIBLE int nvrtcGetSupportedArchs(int* archs) { return *archs = 90, fine; }

VISIBLE int nvrtcCreateProgram(Program** program, const char* source, const char*, int headers, const char**, const char**) {
    if (headers) return invalid_program;
    return *program = new Program{source}, fine;
}

VISIBLE int nvrtcDestroyProgram(Program** program) { return delete *program, *program = nullptr, fine; }

VISIBLE int nvrtcAddNameExpression(Program* program, const char* name) { return program->names.emplace_back(name), fine; }

VISIBLE int nvrtcCompileProgram(Program* program, int n, const char** options) {
    std::string in = std::filesystem::temp_directory_path() / "nvrtc-XXXXXX";
    if (!mkdtemp(in.data())) return compilation;
    std::ofstream(in + "/source.cu") << program->source;
    write_lines(in + "/options", std::vector<std::string>(options, options + n));
    write_lines(in + "/names", program->names);
    const char* python = std::getenv("EMULATED_CUDA_PYTHON");
    const char* const command[] = {python ? python : "python3", COMPILER, in.c_str(), nullptr};
    pid_t child;
    int status = -1;
    if (posix_spawnp(&child, command[0], nullptr, nullptr, const_cast<char* const*>(command), environ) == 0)
        waitpid(child, &status, 0);
    program->log = read(in + "/log");
    program->image = read(in + "/image");
    std::istringstream names(read(in + "/lowered"));
    for (std::string line; std::getline(names, line);) program->lowered.push_back(line);
    for (const char* file : {"source.cu", "options", "names", "log", "image", "lowered"}) unlink((in + "/" + file).c_str());
    rmdir(in.c_str());
    return status == 0 ? fine : compilation;
}

VISIBLE int nvrtcGetLoweredName(Program* program, const char* name, const char** lowered) {
    for (std::size_t i = 0; i < program->names.size(); ++i)
        if (program->names[i] == name) return *lowered = program->lowered[i].c_str(), fine;
    return no_such_name;
}

VISIBLE int nvrtcGetCUBINSize(Program* program, size_t* bytes) { return *bytes = program->image.size() + 1, fine; }

VISIBLE int nvrtcGetCUBIN(Program* program, char* to) {
    return std::memcpy(to, program->image.c_str(), program->image.size() + 1), fine;
}

// CuPy asks for PTX of an empty source, to tell versions apart.
static const std::string ptx = "// emulated on the CPU\n";
VISIBLE int nvrtcGetPTXSize(Program*, size_t* bytes) { return *bytes = ptx.size() + 1, fine; }
VISIBLE int nvrtcGetPTX(Program*, char* to) { return std::memcpy(to, ptx.c_str(), ptx.size() + 1), fine; }

VISIBLE int nvrtcGetProgramLogSize(Program* program, size_t* bytes) { return *bytes = program->log.size() + 1, fine; }

VISIBLE int nvrtcGetProgramLog(Program* program, char* to) {
    return std::memcpy(to, program->log.c_str(), program->log.size() + 1), fine;
}
