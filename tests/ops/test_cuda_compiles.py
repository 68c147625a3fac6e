"""Every kernel the launchers name compiles with NVRTC for Ampere and Hopper; no device is needed."""

import pytest

from mpicomp.ops import cuda_runtime

nvrtc = pytest.importorskip("cuda.bindings.nvrtc")


def checked(result):
    status, *values = result
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, status
    return values[0] if len(values) == 1 else values


def log_of(program):
    text = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.decode().strip("\0 ")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("family", cuda_runtime.KERNELS)
def test_compiles(family, architecture):
    code = cuda_runtime.source(family).encode()
    program = checked(nvrtc.nvrtcCreateProgram(code, f"{family}.cu".encode(), 0, [], []))
    for name in cuda_runtime.KERNELS[family]:
        checked(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    options = [option.encode() for option in (*cuda_runtime.OPTIONS, f"--gpu-architecture={architecture}")]
    status, *_ = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log_of(program)
    for name in cuda_runtime.KERNELS[family]:
        assert checked(nvrtc.nvrtcGetLoweredName(program, name.encode()))
    checked(nvrtc.nvrtcDestroyProgram(program))


def test_every_source_is_listed():
    assert {path.stem for path in cuda_runtime.SOURCES.glob("*.cu")} == set(cuda_runtime.KERNELS)


def test_constants_shared_with_the_kernels():
    """Launchers and kernels agree on the sizes that both need."""
    sources = cuda_runtime.source("collect") + cuda_runtime.source("top_k")
    for line in (
        f"constexpr int threads = {cuda_runtime.THREADS};",
        f"constexpr int warp_size = {cuda_runtime.WARP};",
        f"constexpr int tile = {cuda_runtime.TILE};",
        f"constexpr int digit_bits = {cuda_runtime.DIGIT_BITS},",
    ):
        assert line in sources
