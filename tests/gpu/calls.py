"""Program of every rank of an MPI job: all-reduces of arrays in GPU memory, of every library and device.

``mpirun -n 2 python tests/gpu/calls.py``; rank 0 prints a JSON line a case. Sums of small integers, compared exactly.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from mpi4py import MPI

import mpicomp
from mpicomp import allreduce
from mpicomp.errors import BufferRefused

DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8")
LENGTHS = (0, 1, 3, 1000, 5001)
N = 5001
PIECE = "4096"  # bytes: staging in several pieces


class ByInterface:
    """Another library's array, known by ``__cuda_array_interface__``, with its stream or without."""

    def __init__(self, array: Any, **changed: Any) -> None:
        self.array, self.changed = array, changed

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.array.__cuda_array_interface__, **self.changed}


class ByDLPack:
    """Another library's array, known by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


FORMS: dict[str, Callable[[Any], Any]] = {
    "CuPy's": lambda array: array,
    "by interface, version 2": lambda array: ByInterface(array, version=2, stream=None),
    "by interface, version 3": lambda array: ByInterface(array, version=3, stream=1),
    "by DLPack": ByDLPack,
}


class Calls:
    """Calls on one communicator."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm

    def own(self, n: int, dtype: Any = "float32") -> np.ndarray:
        return (np.arange(n) % 7 + self.comm.rank).astype(dtype)

    def total(self, n: int, dtype: Any = "float32") -> np.ndarray:
        return (np.arange(n) % 7 * self.comm.size + sum(range(self.comm.size))).astype(dtype)

    def algorithm(self, name: str) -> None:
        for dtype in DTYPES:
            for n in LENGTHS:
                source, target = cupy.asarray(self.own(n, dtype)), cupy.full(n, 77, dtype)
                self.comm.Allreduce(source, target, algorithm=name)
                np.testing.assert_array_equal(target.get(), self.total(n, dtype))
                np.testing.assert_array_equal(source.get(), self.own(n, dtype))
                self.comm.Allreduce(MPI.IN_PLACE, source, algorithm=name)
                np.testing.assert_array_equal(source.get(), self.total(n, dtype))

    def form(self, name: str) -> None:
        """Also on a GPU that is not the current one, where there are two."""
        form, last = FORMS[name], cupy.cuda.runtime.getDeviceCount() - 1
        with cupy.cuda.Device(last):
            source, target = cupy.asarray(self.own(N)).reshape(3, -1), cupy.zeros((3, N // 3), "float32")
        self.comm.Allreduce(form(source), form(target))
        np.testing.assert_array_equal(target.get().ravel(), self.total(N))
        self.comm.Allreduce(MPI.IN_PLACE, form(source))
        np.testing.assert_array_equal(source.get().ravel(), self.total(N))

    def streams(self) -> None:
        """Work queued on the current stream runs before the sum, and later work sees the sum."""
        for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(), cupy.cuda.Stream.ptds):
            with stream:
                x = cupy.asarray(self.own(N))
                x *= 2
                self.comm.Allreduce(MPI.IN_PLACE, x)
                after = x + 1
            stream.synchronize()
            np.testing.assert_array_equal(after.get(), 2 * self.total(N) + 1)

    def pending(self, form: str) -> None:
        """Another library's work, on a stream of its own, on both arrays comes before the sum."""
        stream, target = cupy.cuda.Stream(non_blocking=True), cupy.empty(N, "float32")
        source = cupy.asarray(self.own(N))
        cupy.cuda.Device().synchronize()
        with stream:
            source *= 2
            target.fill(77)
        named = {"version": 3, "stream": stream.ptr} if form == "with its stream" else {"version": 2, "stream": None}
        self.comm.Allreduce(ByInterface(source, **named), ByInterface(target, **named))
        np.testing.assert_array_equal(target.get(), 2 * self.total(N))

    def in_flight(self) -> None:
        """Several at once, each behind what its caller has queued; and a call of a rank that waits patiently."""
        sources, targets = ([cupy.asarray(self.own(n)) for n in (N, 1, 1000)] for _ in range(2))
        for one in sources:
            one *= 2
        started = [self.comm.Iallreduce(*pair) for pair in zip(sources, targets, strict=True)]
        started += [self.comm.Iallreduce(MPI.IN_PLACE, one, algorithm="native") for one in sources]
        for request in started:
            request.Wait()
        for one in (*sources, *targets):
            np.testing.assert_array_equal(one.get(), 2 * self.total(one.size))
        self.comm.wait_patiently()
        x = cupy.asarray(self.own(N))
        self.comm.Allreduce(MPI.IN_PLACE, x, algorithm="native")
        np.testing.assert_array_equal(x.get(), self.total(N))

    def parts(self) -> None:
        """Parts of arrays: slices, counts; arrays that are not contiguous, or half on the host, are refused."""
        x = cupy.asarray(self.own(N))
        self.comm.Allreduce(MPI.IN_PLACE, x[10:500])
        self.comm.Allreduce(MPI.IN_PLACE, [x[1000:], 500, MPI.FLOAT])
        expected = self.own(N)
        for part in (slice(10, 500), slice(1000, 1500)):
            expected[part] = self.total(N)[part]
        np.testing.assert_array_equal(x.get(), expected)
        for refused in ((MPI.IN_PLACE, x[::2]), (MPI.IN_PLACE, x.reshape(3, -1).T), (x, np.zeros(N, "float32"))):
            try:
                self.comm.Allreduce(*refused)
            except BufferRefused:
                continue
            raise AssertionError("an argument that is refused on the host was accepted")

    def coded(self, algorithm: str, bound: float | None) -> None:
        """Lossy all-reduces of float32 and float64 give the bits of host arrays."""
        comm = mpicomp.Comm(MPI.COMM_WORLD, reproducible=bound is None)  # which uses codes on one node, too
        for dtype in ("float32", "float64"):
            mine = np.sin(np.arange(N) / 50 + comm.rank).astype(dtype)
            x, expected = cupy.asarray(mine), mine.copy()
            comm.Allreduce(MPI.IN_PLACE, expected, algorithm=algorithm, bound=bound)
            comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm, bound=bound)
            np.testing.assert_array_equal(x.get(), expected)
        comm.Free()

    def state(self, scheme: str) -> None:
        """A reducer goes on bit for bit from its state, on a GPU that need not be the current one, into ``out``."""
        rng, reducers = np.random.default_rng(self.comm.rank), [mpicomp.Reducer(self.comm, scheme) for _ in range(2)]
        with cupy.cuda.Device(cupy.cuda.runtime.getDeviceCount() - 1):
            steps = [{"a": cupy.asarray(rng.standard_normal((30, 40))), "b": cupy.asarray(rng.standard_normal(()))}
                     for _ in range(3)]
        for gradients in steps[:2]:
            reducers[0].reduce(gradients)
        reducers[1].load_state_dict(reducers[0].state_dict())
        fresh, given = reducers[0].reduce(steps[2]), reducers[1].reduce(steps[2], out=steps[2])
        for name, array in fresh.items():
            assert given[name] is steps[2][name]
            assert array.device == given[name].device
            np.testing.assert_array_equal(array.get(), given[name].get())
        assert reducers[0].memory_norm() == reducers[1].memory_norm()


def main() -> int:
    os.environ["MPICOMP_STAGE_BYTES"] = PIECE
    comm, failed = mpicomp.Comm(MPI.COMM_WORLD), 0
    calls = Calls(comm)
    cases: list[tuple[str, Callable[..., None], tuple[str, ...]]] = [
        *((f"{name}: all dtypes", calls.algorithm, (name,)) for name in allreduce.names()),
        *((f"arrays {name}", calls.form, (name,)) for name in FORMS),
        ("streams", calls.streams, ()),
        *((f"work pending {how}", calls.pending, (how,)) for how in ("with its stream", "without")),
        ("parts of arrays", calls.parts, ()),
        *((f"codes {name}", calls.coded, (name, None)) for name in allreduce.LOSSY),
        *((f"bounded, {name}", calls.coded, (name, 1e-3)) for name in ("two_hops", "ring")),
        ("in flight", Calls(mpicomp.Comm(MPI.COMM_WORLD)).in_flight, ()),
        *((f"state of {scheme}", calls.state, (scheme,))
          for scheme in ("scalecom", "topk", "powersgd:rank=20", "onebit", "gtopk", "signsgd")),
    ]  # fmt: skip
    for name, case, arguments in cases:
        try:
            case(*arguments)
            result: dict[str, Any] = {"passed": True}
        except AssertionError as error:  # any other may leave ranks behind: it ends the job
            result = {"error": f"{error}"[:300], "passed": False}
        result["passed"] = bool(comm.allreduce(result["passed"], MPI.LAND))
        failed += not result["passed"]
        if comm.rank == 0:
            print(json.dumps({"case": f"{name}, {comm.size} ranks", **result}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
