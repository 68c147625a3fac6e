"""Every kernel the launchers name compiles with NVRTC for Ampere, Hopper and Blackwell; no device is needed."""

from __future__ import annotations

import re

import pytest
from cuda_resources import ARCHITECTURES, TABLE, assembly, compile_family, report

from mpicomp.ops import search
from mpicomp.ops.gpu import cuda_runtime

# The only kernels that may keep something in local memory: a sketch's votes, where their number is not constant.
INDEXES_ITS_STACK = "sketch_estimate<{}, 0>"


@pytest.mark.long("compiles all kernels for three architectures")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("family", cuda_runtime.KERNELS)
def test_compiles_without_spills(family, architecture):
    pytest.importorskip("cuda.bindings.nvrtc")
    for name, taken in compile_family(family, architecture).items():
        assert taken.spilled == 0, f"{name} for {architecture} spills {taken.spilled} bytes"
        assert taken.registers * cuda_runtime.THREADS <= 65536, f"{name} does not fit a multiprocessor"
        if name not in [INDEXES_ITS_STACK.format(t) for t in cuda_runtime.REAL.values()]:
            assert taken.stack == 0, f"{name} for {architecture} keeps {taken.stack} bytes in local memory"


@pytest.mark.parametrize(
    ("family", "kernel", "reads"),
    [("chunk_max", "chunk_max<float, unsigned char>", 2), ("collect", "select<float, int, false>", 2),
     ("collect", "keep<float, int, false>", 2), ("collect", "keep<float, int, true>", 2),
     ("quantise", "pack_signs<float>", 2), ("quantise", "pack_levels<float>", 1),
     ("sketch", "count_sketch<float>", 2), ("low_rank", "project<float, 4>", 2),
     ("low_rank", "project_back<float, 4>", 2), ("top_k", "count_digits_spans<float>", 2),
     ("top_k", "count_digits<float>", 2), ("update", "masked_update<float, int>", 2),
     ("update", "dense_update<double>", 3), ("reduce", "combine<Add, float>", 2),
     ("measure", "count_nonfinite<float>", 1), ("moments", "moments<float>", 2)],
)  # fmt: skip
def test_passes_read_16_bytes_at_a_time(family, kernel, reads):
    pytest.importorskip("cuda.bindings.nvrtc")
    wide = re.findall(r"ld\.global(?:\.nc)?\.v(?:4\.[fbu]32|2\.[fbu]64)", assembly(family, [kernel])[kernel])
    assert len(wide) >= reads, f"{kernel} has {len(wide)} reads of 16 bytes"


def test_a_spill_would_be_seen():
    log = (
        "ptxas info    : Function properties for _Z1fv\n"
        "ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 4096 bytes smem, 400 bytes cmem[0]\n"
    )
    assert report(log)["_Z1fv"] == (255, 4096, 16, 20)


def test_the_table_has_every_kernel_and_no_spill():
    rows = [line.split("|")[1:-1] for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    expected = [f"`{family}: {name}`" for family, names in cuda_runtime.KERNELS.items() for name in names]
    assert [row[0].strip() for row in rows] == expected, "run python tests/ops/cuda_resources.py"
    for _, *cells in rows:
        assert [cell.split("/")[2].strip() for cell in cells] == ["0"] * len(ARCHITECTURES)


def test_every_kernel_has_instances():
    """Each ``__global__`` function is in an "Instances" line, and each name there is one."""
    for family, names in cuda_runtime.KERNELS.items():
        defined = re.findall(r"__global__ void (\w+)\(", cuda_runtime.source(family))
        assert {name.partition("<")[0] for name in names} == set(defined), family


def test_constants_shared_with_the_kernels():
    """Each macro is used by the kernels, and no kernel uses one that launchers do not define."""
    sources = "".join(path.read_text(encoding="utf-8") for path in cuda_runtime.SOURCES.glob("*.cu*"))
    code = re.sub(r"//.*", "", sources)
    assert set(re.findall(r"\b[A-Z][A-Z_]+\b", code)) == set(cuda_runtime.SHARED)


def test_constants_have_the_values_of_the_launchers():
    """Sizes and rules that both need, as the compiler gets them."""
    for name, value in cuda_runtime.SHARED.items():
        assert value == getattr(cuda_runtime, name, getattr(search, name, None)), name
        assert f"-D{name}={value}" in cuda_runtime.OPTIONS
    of_thread = cuda_runtime.TURNS * cuda_runtime.ROUNDS * cuda_runtime.PACK_BYTES
    assert of_thread * cuda_runtime.THREADS == cuda_runtime.TILE_BYTES
