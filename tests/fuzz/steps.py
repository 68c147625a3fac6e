"""Steps of random schemes on random arrays, in several environments that must agree.

    python tests/fuzz/steps.py [--ranks 3] [--count 500] [--seed N]
    python tests/fuzz/steps.py --seed N --case I       one case again, with what it does

Scheme, options, arrays, threads of workers, the place of the mean, numbers that are not finite and a resume in between
are drawn anew for each case; case I depends on seed and I alone. Every environment runs the same cases in a job of its
own. Within a job all ranks must end a case alike and have the same mean, and gradients must not change. Between jobs
means, states and skipped steps must agree but for rounding. A value that rounding moves across a threshold shows as a
difference, too: with float64, whose residual memory holds the rounding of sums, look at it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run_mpi import job_command, job_environment

from mpicomp.errors import InvalidArgument, MpicompError
from mpicomp.schemes import registry
from mpicomp.schemes.options import Option
from mpicomp.schemes.registry import Scheme

ENVIRONMENTS = {"compiled": {}, "reference": {"MPICOMP_OPS": "reference"}, "threads": {"MPICOMP_NUM_THREADS": "3"},
                "scattered": {"MPICOMP_RANKS_PER_NODE": "1"}}  # fmt: skip
PARTS = {"memory": registry.MEMORIES, "selector": registry.SELECTORS, "codec": registry.CODECS,
         "exchange": registry.EXCHANGES, "schedule": registry.SCHEDULES}  # fmt: skip
OF_ONE_RANK = ("error-reset", "shifted")  # memories by which ranks' means differ
CLOSE = 1e-4  # of the norm
LONGEST = 1 << 20  # elements


# ---- drawing
def drawn_option(option: Option, draw: random.Random) -> Any:
    if option.choices:
        return draw.choice(option.choices)
    if option.words:
        return draw.choice(["none", *option.words, "+".join(option.words[:2])])
    low = option.low or 0
    if option.type is int:
        return draw.randint(int(low), int(min(option.high or LONGEST, low + draw.choice([3, 70, 1000]))))
    if option.high is None:
        return low + draw.choice([0.01, 0.5, 3.0])
    return low + (option.high - low) * draw.choice([0.01, 0.1, 0.5, 1.0])


def drawn_scheme(draw: random.Random) -> str:
    """A composition with some other parts and options, among those that are allowed."""
    while True:
        name = draw.choice(registry.names())
        given: dict[str, Any] = {part: draw.choice(list(known)) for part, known in PARTS.items() if draw.random() < 0.3}
        composition = registry.COMPOSITIONS[name]
        declared = registry._declared(registry._classes(composition, {**composition.defaults, **given}))
        for option in declared:
            if option.name not in PARTS and draw.random() < 0.25:
                given[option.name] = drawn_option(option, draw)
        try:
            scheme = Scheme(name, given)
        except InvalidArgument:
            continue
        if not scheme.chooses:  # by time, which differs from job to job
            return str(scheme)


def drawn_case(seed: int, number: int) -> dict[str, Any]:
    draw = random.Random(f"{seed} {number}")
    lengths = (1, 3, 300, 5000) if draw.random() < 0.75 else (3, 40_000, 250_000)
    steps = draw.randrange(2, 6)
    nonfinite = draw.choice(["raise", "skip", "allow"])
    return {
        "scheme": drawn_scheme(draw), "workers": draw.choice([1, 1, 1, 2, 3]), "nonfinite": nonfinite,
        "dtype": draw.choice(["float32", "float32", "float64", "float16"]),
        "form": draw.choice(["array", "list", "dict"]),
        "shapes": [(draw.choice(lengths),) if draw.random() < 0.5 else (draw.randrange(1, 40), draw.randrange(1, 90))
                   for _ in range(draw.randrange(1, 6))],
        "out": draw.choice(["none", "own", "gradient"]), "measures": draw.choice([0, 0, 0, 2]),
        "algorithm": draw.choice(["auto", "auto", "ring", "halving_doubling", "direct", "native", "node_shared"]),
        "kind": draw.choice(["normal", "whole", "sparse", "signs"]), "scale": draw.choice([1.0, 1e-3, 1e-30, 1e4]),
        "steps": steps, "resume": draw.randrange(2 * steps),
        "bad": (draw.randrange(2 * steps), draw.random(), draw.choice(["nan", "inf", "-inf", "6e4"]))
        if nonfinite != "allow" else (steps, 0.0, "nan"),
    }  # fmt: skip


def gradients(case: dict[str, Any], seed: list[int], step: int, ranks: int) -> list[np.ndarray]:
    *_, rank = seed
    rng, arrays = np.random.default_rng([*seed, step]), []
    rows = (case["workers"],) if case["workers"] > 1 else ()
    for shape in case["shapes"]:
        x = rng.standard_normal((*rows, *shape))
        if case["kind"] == "whole":
            x = np.round(3 * x)
        elif case["kind"] == "sparse":
            x *= rng.random(x.shape) < 0.05
        elif case["kind"] == "signs":
            x = np.sign(x)
        arrays.append((x * case["scale"]).astype(case["dtype"]))
    at, place, number = case["bad"]
    if step == at and rank == int(place * ranks):
        arrays[-1].reshape(-1)[arrays[-1].size // 2] = number
    if case["form"] == "array":
        arrays = [np.concatenate([x.reshape(*rows, -1) for x in arrays], axis=-1)]
    return arrays


def in_form(form: str, arrays: list[np.ndarray]) -> Any:
    if form == "dict":
        return {f"layer {i}": x for i, x in enumerate(arrays)}
    return arrays if form == "list" else arrays[0]


def arrays_of(form: str, given: Any) -> list[np.ndarray]:
    if form == "dict":
        return [*given.values()]
    return given if form == "list" else [given]


# ---- one job
def fingerprint(value: Any, projection: np.ndarray) -> Any:
    """Return norm, a projection and the number that is not finite of floats; else the value, or a sum of it."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind != "f":
        return [str(value.dtype), value.size, int(value.astype(np.int64).sum())]
    flat = value.reshape(-1).astype(np.float64)
    finite = np.where(np.isfinite(flat), flat, 0.0)
    return [float(np.linalg.norm(finite)), float(finite @ projection[: flat.size]), int((~np.isfinite(flat)).sum())]


def steps_of(case: dict[str, Any], seed: list[int], comm: Any, projection: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield what every step of a case gives on this rank."""
    import mpicomp

    def made() -> mpicomp.Reducer:
        return mpicomp.Reducer(comm, case["scheme"], workers=case["workers"], algorithm=case["algorithm"],
                               nonfinite=case["nonfinite"], measures=case["measures"])

    reducer, form = made(), case["form"]
    alike = reducer.scheme.part_names["memory"] not in OF_ONE_RANK
    for step in range(case["steps"]):
        arrays = gradients(case, seed, step, comm.size)
        before = [x.copy() for x in arrays]
        given = in_form(form, arrays)
        out = given if case["out"] == "gradient" and case["workers"] == 1 else None
        if case["out"] == "own":
            out = in_form(form, [np.full(x.shape[case["workers"] > 1 :], 9, x.dtype) for x in arrays])
        try:
            found = reducer.reduce(given, out)
        except MpicompError as error:
            yield {"error": f"{type(error).__name__}: {error}"}
        else:
            marks = [fingerprint(x, projection) for x in arrays_of(form, found)]
            assert not alike or comm.allgather(marks) == [marks] * comm.size, "ranks have other means"
            state = {name: fingerprint(value, projection) for name, value in reducer.state_dict().items()
                     if not name.startswith("measures/")}
            yield {"mean": marks, "state": state, "skipped": reducer.stats.skipped}
        if out is not given:
            same = all(np.array_equal(x, y, equal_nan=True) for x, y in zip(arrays, before, strict=True))
            assert all(comm.allgather(same)), "gradients have changed"  # on all ranks: none goes on alone
        if step == case["resume"]:
            state, reducer = reducer.state_dict(), made()
            reducer.load_state_dict(state)


def inside(folder: Path, seed: int, numbers: range) -> None:
    """Run the cases on this rank; a line a case goes to its file."""
    from mpi4py import MPI

    import mpicomp

    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    comm = mpicomp.Comm(MPI.COMM_WORLD)
    projection = np.random.default_rng(seed).standard_normal(5 * LONGEST)
    with open(folder / str(comm.rank), "w") as file:
        for number in numbers:
            told: list[dict[str, Any]] = []
            try:
                told.extend(steps_of(drawn_case(seed, number), [seed, number, comm.rank], comm, projection))
            except MpicompError as error:
                told.append({"error": f"{type(error).__name__}: {error}"})
            except AssertionError:
                told.append({"failed": traceback.format_exc()})
            except Exception:  # perhaps on this rank alone: the hook of `Comm` ends the job
                print(f"case {number} of seed {seed}", flush=True)
                raise
            ends = comm.allgather([sorted(one) for one in told])
            if ends != [ends[0]] * comm.size:
                told.append({"failed": f"ranks end it in different ways: {ends}"})
            file.write(json.dumps(told) + "\n")


# ---- all jobs
def job(environment: str, ranks: int, folder: Path, seed: int, numbers: range) -> list[list[list[dict[str, Any]]]]:
    """Run the cases in an environment; return what each rank tells of each case."""
    folder.mkdir()
    command = [*job_command(Path(sys.executable), ranks), __file__, "--inside", str(folder), "--seed", str(seed),
               "--first", str(numbers.start), "--count", str(len(numbers))]  # fmt: skip
    subprocess.run(command, env=job_environment(**ENVIRONMENTS[environment]), check=True)
    return [[json.loads(line) for line in (folder / str(rank)).read_text().splitlines()] for rank in range(ranks)]


def close(one: Any, other: Any) -> bool:
    if isinstance(one, list) and len(one) == 3 and isinstance(one[0], float) and isinstance(other, list):
        most = CLOSE * max(one[0], other[0])
        return abs(one[0] - other[0]) <= most and abs(one[1] - other[1]) <= most and one[2] == other[2]
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    return bool(one == other)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--count", type=int, default=500, help="cases")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--case", type=int, help="run this case alone, and print all of it")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.count)
    if options.case is not None:
        numbers = range(options.case, options.case + 1)
    if options.inside:
        inside(options.inside, options.seed, numbers)
        return 0
    print(f"--seed {options.seed}", flush=True)
    found: dict[str, list[list[list[dict[str, Any]]]]] = {}
    with tempfile.TemporaryDirectory(prefix="mpicomp-steps-") as folder:
        for name in ENVIRONMENTS:
            found[name] = job(name, options.ranks, Path(folder) / name, options.seed, numbers)
    wrong = 0
    for at, number in enumerate(numbers):
        told = {(name, rank): cases[at] for name, ranks in found.items() for rank, cases in enumerate(ranks)}
        failed = [one["failed"] for steps in told.values() for one in steps if "failed" in one]
        differs = [key for key, steps in told.items() if not close(steps, told["compiled", key[1]])]
        wrong += bool(failed or differs)
        if failed or differs or options.case is not None:
            print(f"case {number}: {drawn_case(options.seed, number)}\n  differs in {differs}", *failed[:1], flush=True)
        if options.case is not None:
            print(json.dumps({str(key): steps for key, steps in told.items()}, indent=1))
    refused = sum("error" in steps[-1] for steps in found["compiled"][0] if steps)
    print(f"{len(numbers)} cases, {refused} of them end with an error of ours; {wrong} to look at")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
