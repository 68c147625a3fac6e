"""Time selectors and codecs as a step uses them, on one core, beside a plain copy.

    python tests/benchmarks/bench_parts.py [n] [--quick]

``passes`` counts how often a selector has to read its vector by its definition (a threshold that is estimated from all
elements needs one pass for the estimate and one for the selection); its rate counts the bytes of these passes, so
100 % is as fast as a copy. A codec's rate is in bytes of input. Parts and copy alternate; medians are compared.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from bench_ops import options as given_options
from bench_ops import seconds

from mpicomp.ops import cpu
from mpicomp.schemes.codecs import CODECS
from mpicomp.schemes.selectors import SELECTORS
from mpicomp.schemes.values import Compensated, Once, Place
from mpicomp.schemes.workers import Workers

DENSITY = 0.001
# name in the table -> (selector, its options, passes over the vector)
SELECTIONS = {
    "top-k": ("top-k", {}, 1),
    "threshold": ("threshold", {"lam": 3.29 * 2**0.5}, 1),
    "sampled": ("sampled", {}, 1),
    "gaussian": ("gaussian", {}, 2),
    "sidco": ("sidco", {}, 2),
    "bins of 500": ("bins", {"bin": 500}, 1),
    "chunk-max": ("chunk-max", {"chunk": 1000}, 1),
}
ENCODED = {
    "one-bit": {}, "sign": {}, "levels": {}, "levels, 8 bits": {"width": 8, "levels": 127}, "ternary": {},
    "stochastic": {}, "natural": {},
}


def step_of(shape: tuple[int, int]) -> Any:
    """Stand-in for a step, with the attributes that parts use, for one worker with one matrix."""
    n = shape[0] * shape[1]
    return SimpleNamespace(
        ops=cpu, number=0, n=n, spans=[(0, n)], tensors=[(0, n, shape)], dtype=np.dtype(np.float32),
        workers=Workers.equal(1, 1),
        density=lambda target, span: target, key=lambda worker: cpu.Key(1, 0, worker), of_layout=Once(),
        once=lambda key, make: make(), schedule=SimpleNamespace(settled_from=float("inf")),
    )


def made(classes: dict[str, type], name: str, given: dict[str, Any]) -> Any:
    options = {option.name: option.default for option in classes[name].options}
    options.update({key: value for key, value in {"density": DENSITY, **given}.items() if key in options})
    return classes[name](**options)


def medians(call: Callable[[], Any], copy: Callable[[], None], number_of_rounds: int) -> tuple[float, float]:
    call(), copy()
    rounds = [(seconds(call), seconds(copy)) for _ in range(number_of_rounds)]
    times = zip(*rounds, strict=True)
    return statistics.median(next(times)), statistics.median(next(times))


def main() -> None:
    given = given_options(__doc__)
    step = step_of((given.n // 1000, 1000))
    n, rng = step.n, np.random.default_rng(1)
    memory, grad = rng.standard_normal((2, n), dtype=np.float32)
    source, target = np.ones(n, np.float32), np.zeros(n, np.float32)

    def copy() -> None:
        np.copyto(target, source)

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(f"{n} float32, normal, one core, {cpu.isa()}, medians of {given.rounds} alternating rounds; GB = 1e9 bytes")
    print(f"{'selector, with memory':28}{'sent':>10}{'passes':>8}{'ms':>9}{'GB/s':>8}{'% of copy':>11}")
    for name, (selector, options, passes) in SELECTIONS.items():
        part = made(SELECTORS, selector, options)
        call = lambda part=part: part.select(Compensated(memory, grad), step)  # noqa: E731
        sent = len(part.expand(call(), step))
        median, copied = medians(call, copy, given.rounds)
        rate, copy_rate = passes * 8 * n / median / 1e9, 8 * n / copied / 1e9
        print(f"{name:28}{sent:10}{passes:8}{median * 1e3:9.2f}{rate:8.1f}{100 * rate / copy_rate:10.0f} %")
    place = Place(0, None, 0, n)
    print(f"\n{'codec':28}{'bytes/element':>14}{'encode ms':>11}{'GB/s':>8}{'decode ms':>11}{'GB/s':>8}")
    for name, options in ENCODED.items():
        part = made(CODECS, name.split(",")[0], options)
        encode = lambda part=part: part.encode(grad, place, step)  # noqa: E731
        codes = encode()
        coded, _ = medians(encode, copy, given.rounds)
        decoded, _ = medians(lambda part=part, codes=codes: part.decode(codes, place, step), copy,
                             given.rounds)
        print(f"{name:28}{codes.nbytes / n:14.3f}{coded * 1e3:11.2f}{4 * n / coded / 1e9:8.2f}"
              f"{decoded * 1e3:11.2f}{4 * n / decoded / 1e9:8.2f}")


if __name__ == "__main__":
    main()
