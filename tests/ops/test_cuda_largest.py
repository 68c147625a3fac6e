"""The k largest of long vectors on the GPU: a guess, the candidates it leaves, and the vector where these do not do."""

from __future__ import annotations

from math import ceil, exp, fsum, lgamma, log, log1p, sqrt

import numpy as np
import pytest
from arrays import REALS, assert_same, vector, with_specials
from test_large import Huge, Recorder
from test_selection import long_vectors

from mpicomp.ops import gpu, oracle
from mpicomp.ops.gpu import cuda_runtime, largest

SAMPLE = cuda_runtime.SAMPLE
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture
def ops(emulated_cuda, monkeypatch):
    """Operations that sample whatever can be."""
    monkeypatch.setattr(largest, "LONG", 0)
    monkeypatch.setattr(largest, "SAMPLED", SAMPLE)
    return emulated_cuda


@pytest.fixture
def sure(monkeypatch):
    """Guesses fail once in 10^12, so that a test may rely on them; as they are, once in 10^5."""
    monkeypatch.setattr(largest, "_at_most", lambda mean: ceil(mean + 8 * sqrt(mean) + 20))


@pytest.fixture
def after(monkeypatch):
    """``after(kernel, change)``: its arguments go through ``change`` when a launch of it has been queued."""

    def set_up(kernel, change):
        def launch(family, name, blocks, *args):
            cuda_runtime.launch(family, name, blocks, *args)
            if name.startswith(f"{kernel}<"):
                change(*args)
                seen.append(name)

        seen = []
        monkeypatch.setattr(largest, "launch", launch)
        return seen

    return set_up


def spoil_vector(memory, grad, *_):
    grad[...] = np.nan


def spoil_candidates(*args):
    values, at, _ = args[-3:]
    values[...] = np.nan
    at[...] = -1


def vectors(rng, n, dtype):
    kinds = long_vectors(rng, n)
    normal, tiny = kinds["normal"], np.finfo(dtype).smallest_subnormal
    kinds.update({
        "descending": np.sort(normal)[::-1],
        "denormal": np.rint(1000 * normal) * float(tiny),
        "one digit": 1 + rng.random(n) / 64,
        "zero": np.zeros(n),
        "periodic": np.where(np.arange(n) % 8 == 3, normal, 0),
        "at the end": np.where(np.arange(n) < n - SAMPLE // 2, 0, normal),
        "specials": with_specials(rng, normal.astype(dtype)),
    })
    return {name: x.astype(dtype) for name, x in kinds.items()}


@pytest.mark.parametrize("kind", ["normal", "constant", "mostly zero", "few values", "ascending", "one place",
                                  "not finite", "descending", "denormal", "one digit", "zero", "periodic",
                                  "at the end", "specials"])
@pytest.mark.parametrize("dtype", REALS)
def test_any_vector(ops, rng, dtype, kind):
    """Whatever the sample is like, the oracle's very indices."""
    n = int(rng.integers(SAMPLE, 2 * SAMPLE))
    x, memory = vectors(rng, n, dtype)[kind], with_specials(rng, vector(rng, n, dtype))
    for k in (0, 1, n // int(rng.choice([30, 300, 1000]))):
        assert_same(ops.top_k(None, x, [(0, x.size)], [k]), oracle.top_k(None, x, [(0, x.size)], [k]))
    assert_same(ops.top_k(memory, x, [(0, x.size)], [n // 100]), oracle.top_k(memory, x, [(0, x.size)], [n // 100]))


@pytest.mark.parametrize("dtype", REALS)
def test_any_spans(ops, rng, dtype):
    """Some too short for a sample, some without room, some whose guess does not do; in any order of the vector."""
    ends = np.cumsum(rng.integers(SAMPLE, 2 * SAMPLE, 5)).tolist()
    spans = [(ends[0], ends[1]), (3, ends[0]), (ends[1], ends[1] + 99), (ends[1], ends[1]), (ends[2], ends[3] - 1),
             (ends[3], ends[4])]
    memory = vector(rng, ends[4], dtype)
    kinds = vectors(rng, ends[4], dtype)
    for name in rng.permutation(list(kinds))[:5]:
        x = kinds[name]
        counts = [100, 30, 7, 0, ends[3] - ends[2] - 1, 1]
        found, expected = ops.top_k(None, x, spans, counts), oracle.top_k(None, x, spans, counts)
        np.testing.assert_array_equal(found, expected, name)
    counts = [1, 100, 99, 0, 50, 9]
    assert_same(ops.top_k(memory, x, spans, counts), oracle.top_k(memory, x, spans, counts))


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("has_memory", [True, False])
def test_the_vector_is_read_once(ops, rng, after, sure, dtype, has_memory):
    """Numbers of a usual kind: once the candidates are kept, nothing looks at the vector again."""
    n = 6 * SAMPLE + int(rng.integers(99))
    memory, grad = rng.standard_normal((2, n)).astype(dtype)
    memory, spans = memory if has_memory else None, [(0, 2 * SAMPLE + 5), (2 * SAMPLE + 5, n)]
    spoilt = after("keep", spoil_vector)
    for k in (1, n // 1000, n // 100, n // 60):
        expected = oracle.top_k(memory, grad, [(0, grad.size)], [k])
        assert_same(ops.top_k(memory, grad.copy(), [(0, grad.copy().size)], [k]), expected)
        expected = oracle.top_k(memory, grad, spans, [k, k])
        assert_same(ops.top_k(memory, grad.copy(), spans, [k, k]), expected)
    assert len(spoilt) == 8


def test_wide_indices(ops, rng, wide_indices):
    memory, grad = vector(rng, 2 * SAMPLE, np.float32), vector(rng, 2 * SAMPLE, np.float32)
    assert_same(ops.top_k(memory, grad, [(0, grad.size)], [70]),
                oracle.top_k(memory, grad, [(0, grad.size)], [70]).astype(np.int64))
    spans = [(0, SAMPLE + 9), (SAMPLE + 9, 2 * SAMPLE)]
    expected = oracle.top_k(memory, grad, spans, [70, 3]).astype(np.int64)
    assert_same(ops.top_k(memory, grad, spans, [70, 3]), expected)


@pytest.mark.parametrize(("more", "spoil"), [(0, spoil_vector), (1, spoil_candidates)])
def test_as_many_candidates_as_there_is_room_for(ops, rng, after, sure, more, spoil):
    """Candidates that just fit replace the vector; with one more, top-k ignores them and reads the vector."""
    spoilt = after("keep", spoil)
    for n, k in ((3 * SAMPLE + 7, 100), (2 * SAMPLE, 3)):
        _, room = largest.guessed(n, k)
        x = rng.random(2 * n).astype(np.float32)
        for start in (0, n):
            x[start + rng.permutation(n)[: room + more]] = -2
        spans = [(0, n), (n, 2 * n)]
        assert_same(ops.top_k(None, x[:n].copy(), [(0, x[:n].copy().size)], [k]),
                    oracle.top_k(None, x[:n], [(0, x[:n].size)], [k]))
        assert_same(ops.top_k(None, x.copy(), spans, [k, k]), oracle.top_k(None, x, spans, [k, k]))
    assert len(spoilt) == 4


def test_any_guess(ops, rng, after):
    """Too high, so that candidates are fewer than k or none; too low, so that they are many; nearly right."""
    n, k = 3 * SAMPLE, 150
    x = vector(rng, 2 * n, np.float32)
    spans, expected = [(0, n), (n, 2 * n)], oracle.top_k(None, x[:n], [(0, x[:n].size)], [k])
    least = np.sort(np.abs(x[:n]).view(np.int32))[-k]
    of_spans = oracle.top_k(None, x, spans, [k, k])
    keys = (0, 1, least - 1, least, least + 1, np.float32(np.inf).view(np.int32), 2**31 - 1, *rng.integers(0, 2**31, 2))
    for key in keys:
        planted = after("guess", lambda *args, key=key: args[-1].fill(int(key)))
        assert_same(ops.top_k(None, x[:n].copy(), [(0, x[:n].copy().size)], [k]), expected)
        assert_same(ops.top_k(None, x, spans, [k, k]), of_spans)
        assert len(planted) == 2


def test_room_for_candidates():
    """Room for candidates is a small part of the vector, and zero (no guess) at densities of 10 % and more."""
    for n in (SAMPLE, 25_000_000, 2**33):
        rooms = [largest.guessed(n, int(n * density))[1] for density in (1e-6, 1e-3, 0.01, 0.05, 0.1, 1)]
        assert 0 < rooms[0] <= rooms[1] <= rooms[2] <= n // 40
        assert rooms[1] < n // 100
        assert 0 < rooms[3] <= n // largest.KEPT_SHARE
        assert rooms[4:] == [0, 0]
        assert all(room % 4 == 0 for room in rooms)


def probable(least, p):
    """That of a sample at least so many are hit, with probability p each."""
    ways = (lgamma(SAMPLE + 1) - lgamma(j + 1) - lgamma(SAMPLE - j + 1) + j * log(p) + (SAMPLE - j) * log1p(-p)
            for j in range(least, SAMPLE + 1))
    return fsum(map(exp, ways))


@pytest.mark.parametrize("density", [1e-7, 1e-5, 1e-3, 0.01, 0.08])
def test_guesses_seldom_fail(density):
    """Two of 100 000, too high or too low, as docs/development/gpu.md says."""
    n = 25_000_000
    wanted, room = largest.guessed(n, int(density * n))
    assert room > 0
    assert probable(wanted, density) + 1 - probable(wanted, room / n) < 2e-5


@pytest.mark.parametrize("spans", [1, 2])
def test_launches(spans):
    """Two more for long vectors; none for short ones, or spans that are short each."""

    def launched(n):
        recorder = Recorder()
        previous = cuda_runtime.use(recorder)
        try:
            if spans == 1:
                gpu.top_k(Huge(n), Huge(n), [(0, Huge(n).size)], [n // 1000])
            else:
                gpu.top_k(Huge(n), Huge(n), [(0, n // 2), (n // 2, n)], [n // 1000] * 2)
        finally:
            cuda_runtime.use(previous)
        return [name for name, *_ in recorder.launches]

    count = ["count_digits", "count_digits_spans"][spans - 1]
    assert launched(largest.LONG - 2) == [count] * 3 + ["select_largest"]
    assert launched(largest.LONG) == ["guess", "keep"] + [count] * 3 + ["select_largest"]
