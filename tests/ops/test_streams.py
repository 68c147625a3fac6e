"""Tables that stay on the device are read by kernels of the stream that copied them there, and by no other's."""

import threading

import numpy as np
import pytest
from cuda_on_cpu import EmulatedRuntime, Unwritten

from mpicomp.ops import gpu
from mpicomp.ops.gpu import cuda_runtime

SPANS = [(0, 300), (300, 1000)]
MATRICES = [(0, 600, 30, 2), (600, 1000, 20, 2)]  # start, stop, rows, rank
ROWS, COLUMNS = sum(rows for *_, rows, _ in MATRICES) * 2, (20 + 20) * 2


class Copies(Unwritten):
    """NumPy, whose ``asarray`` copies; who asked for a copy is known as long as the copy lives."""

    def __init__(self, runtime):
        self.runtime, self.made = runtime, []

    def asarray(self, host):
        copy = np.array(host)
        self.made.append((copy, self.runtime.who()))
        return copy


class Streams(EmulatedRuntime):
    """The test says which stream is the current one; kernels look whose arrays they get."""

    def __init__(self):
        self.current, self.xp, self.looked = 7, Copies(self), 0

    def stream(self):
        return self.current

    def who(self):
        return self.current, threading.get_ident() if self.current == cuda_runtime.PER_THREAD else 0

    def kernel(self, family, name):
        run = super().kernel(family, name)

        def checked(grid, block, args):
            for one in filter(lambda arg: isinstance(arg, np.ndarray), args):
                for copy, who in self.xp.made:
                    if np.may_share_memory(one, copy):
                        self.looked += 1
                        assert who == self.who(), f"{name} reads a table of stream {who} on {self.who()}"
            run(grid, block, args)

        return checked


def zeros(n, dtype=np.float32):
    return np.zeros(n, dtype)


USES = {
    "chunks": lambda x: gpu.chunk_max(None, x, [(*span, 10) for span in SPANS], zeros(100, np.uint8)),
    "chunk indices": lambda x: gpu.chunk_indices(zeros(100, np.uint8), [(*span, 10) for span in SPANS], 1000,
                                                       zeros(100, np.int32)),
    "top-k": lambda x: gpu.top_k(None, x, SPANS, [3, 5]),
    "threshold": lambda x: gpu.threshold(None, x, SPANS, [0.5, 1.0]),
    "moments": lambda x: gpu.moments(None, x, SPANS, 0.5),
    "normal thresholds": lambda x: gpu.select_normal(None, x, SPANS, [3, 5]),
    "exponential thresholds": lambda x: gpu.select_exponential(None, x, SPANS, [3, 5]),
    "thresholds of samples": lambda x: gpu.select_sampled(None, x, SPANS, [(0, 3, 100), (300, 7, 100)], [9, 9]),
    "bins": lambda x: gpu.bin_select(None, x, SPANS, 10),
    "sketch rows": lambda x: gpu.project_rows(None, x, SPANS, 10, 2, 1, zeros(200)),
    "random": lambda x: gpu.random_strata(1000, SPANS, [3, 5], gpu.Key(1, 2, 3)),
    "pack": lambda x: gpu.pack([x[:300], x[300:]], zeros(1000)),
    "unpack": lambda x: gpu.unpack(x, [HERE[:300], HERE[300:]]),
    "low rank": lambda x: gpu.project(None, x, MATRICES, zeros(COLUMNS), zeros(ROWS)),
    "back": lambda x: gpu.project_back(None, x, MATRICES, zeros(ROWS), zeros(COLUMNS)),
    "orthogonal": lambda x: gpu.orthogonalise(np.random.default_rng(1).random(ROWS), MATRICES),
}  # fmt: skip
X, HERE = np.random.default_rng(2).standard_normal(1000).astype(np.float32), zeros(1000)


@pytest.fixture
def streams():
    runtime = Streams()
    previous = cuda_runtime.use(runtime)
    yield runtime
    cuda_runtime.use(previous)


@pytest.mark.parametrize("use", USES)
def test_another_stream_gets_tables_of_its_own(streams, use):
    for streams.current in (7, 8, 7):
        USES[use](X)
    assert streams.looked, "a kernel has read what was copied to the device"


def test_a_stream_keeps_its_tables(streams):
    for _ in range(3):
        USES["chunks"](X)
    assert len(streams.xp.made) == 1


def test_the_stream_of_each_thread_is_another(streams):
    """Though all have one number."""
    streams.current, failed = cuda_runtime.PER_THREAD, []

    def run():
        try:
            USES["chunks"](X)
        except AssertionError as error:
            failed.append(error)

    USES["chunks"](X)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed and len(streams.xp.made) == 2
