"""What a step queues on a GPU, and how often the host waits for it: counted, the kernels run on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import CountingRuntime, EmulatedGPU, counts, on_device, on_host

import mpicomp
from mpicomp import device as device_module
from mpicomp import ops
from mpicomp.ops import cuda_runtime, gpu

STEPS = 2


@pytest.fixture
def emulated(world, monkeypatch):
    if world.size > 2:
        pytest.skip("more ranks queue no more")
    monkeypatch.setenv("MPICOMP_GPU_PATH", "staged")
    monkeypatch.setattr(ops, "_HOMES", {**ops._HOMES, "emulatedgpu": gpu})
    runtime, fake = cuda_runtime.use(CountingRuntime()), EmulatedGPU()
    device_module.register(fake)
    if world.rank == 0:  # the others load what this one compiled
        gpu.count_nonfinite(on_device(np.ones(1, np.float32)))
    world.Barrier()
    yield fake
    device_module.unregister(fake)
    cuda_runtime.use(runtime)
    ops._FOUND.clear()


def resnet50(divisor: int) -> list[tuple[int, ...]]:
    """The shapes of ResNet-50's 161 tensors, every number of channels divided."""
    shapes, channels = [(64, 3, 7, 7), (64,), (64,)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for conv in ((width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [conv, conv[:1], conv[:1]]
            if block == 0:
                shapes += [(4 * width, channels, 1, 1), (4 * width,), (4 * width,)]
            channels = 4 * width
    shapes += [(1000, 2048), (1000,)]
    small = [(max(1, s[0] // divisor), *(max(1, c // divisor) for c in s[1:2]), *s[2:]) for s in shapes]
    assert len(small) == 161
    return small


def gradients(seed, rank, step, shapes):
    rng = np.random.default_rng([seed, rank, step])
    return {f"tensor {i}": rng.integers(-48, 49, shape).astype(np.float32) for i, shape in enumerate(shapes)}


def steps_of(comm, scheme, seed, shapes):
    """Results on the CPU and the emulated GPU of some steps, and the counts of the last."""
    here, there = mpicomp.Reducer(comm, scheme), mpicomp.Reducer(comm, scheme)
    held = {name: on_device(one) for name, one in gradients(seed, comm.rank, 0, shapes).items()}
    out = {name: on_device(np.zeros_like(one)) for name, one in held.items()}
    for step in range(STEPS):
        fresh = gradients(seed, comm.rank, step, shapes)
        expected = here.reduce(fresh)
        for name, one in fresh.items():
            held[name][...] = one
        counts.clear()
        there.reduce(held, out)
        for name, one in expected.items():
            np.testing.assert_array_equal(on_host(out[name]), one)
    return dict(counts)


@pytest.mark.parametrize("layers", ["whole", "per-tensor"])
def test_a_scalecom_step_over_161_tensors(emulated, comm, seed, layers):
    """A handful of launches, whatever the number of tensors; the host waits where it has to know something."""
    seen = steps_of(comm, f"scalecom:chunk=112,beta=0.5,layers={layers}", seed, resnet50(64))
    assert seen["kernels"] <= 9, seen
    assert seen["kernel move_arrays"] == 2  # gradients in, means out
    # One for NaN; and where another rank leads, one to see that its positions lie inside their chunks.
    assert seen["waits"] <= 2, seen
    assert seen.get("cupy", 0) <= 4, seen


@pytest.mark.parametrize("scheme", ["topk:density=0.01,layers=whole", "threshold:lam=40", "dense"])
def test_launches_do_not_grow_with_the_tensors(emulated, comm, seed, scheme):
    shapes = resnet50(64)
    many, few = steps_of(comm, scheme, seed, shapes), steps_of(comm, scheme, seed, shapes[:5])
    for what in ("kernels", "waits", "copies", "cupy"):  # lists of another density may be packed in another form
        assert many.get(what, 0) <= few.get(what, 0) + 2, (what, many, few)


def test_a_step_on_the_gpu_stages_what_it_sends(emulated, comm, seed):
    """Each staged vector is waited for once, and everything started has ended."""
    steps_of(comm, "scalecom:chunk=112", seed, resnet50(64))
    assert emulated.pending == 0
    assert (emulated.log.count("to_host") > 0) == (comm.size > 1)
