"""A few hundred bent inputs for every decoder; ``make fuzz`` gives each ten thousand."""

from __future__ import annotations

import os

import bending
import fuzz
import numpy as np
import pytest

from mpicomp.errors import MpicompError

COUNT = 150
SLOW = {"file: trace hdf5": 40, "file: bench h5": 40, "file: matlab": 40}  # milliseconds each


@pytest.mark.long("thousands of bent inputs; test_generated.py has fewer")
@pytest.mark.parametrize("name", fuzz.names())
def test_bent_inputs_are_read_or_refused(name, tmp_path, monkeypatch):
    for module, forks in fuzz.files.FORKS.items():
        monkeypatch.setattr(module, "subprocess", forks)
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"to repeat: python tests/fuzz/fuzz.py --only '{name}' --seed {seed} --case I")
    make = fuzz.decoders(tmp_path)[name]
    read, count = 0, next((few for start, few in SLOW.items() if name.startswith(start)), COUNT)
    with np.errstate(all="ignore"):
        valid, reader = make(np.random.default_rng(seed))
        reader(valid)
        for case in range(count):
            print("case", case)
            read += fuzz.try_one(make, seed, name, case)[0]
    if count == COUNT and name != "wire: selection scalecom":
        assert read < count  # something was refused


def test_what_counts_as_a_finding():
    def takes_all(rng):
        return b"x" * 64, lambda data: None

    def crashes(rng):
        return b"x" * 64, lambda data: [][1]

    def refuses_all(rng):
        def read(data):
            raise MpicompError("no")

        return b"x" * 64, read

    assert all(fuzz.try_one(takes_all, 1, "a", case)[0] for case in range(40))
    with pytest.raises(IndexError):
        fuzz.try_one(crashes, 1, "a", 0)
    with pytest.raises(AssertionError, match="valid input was refused"):
        for case in range(200):
            fuzz.try_one(refuses_all, 1, "a", case)


def test_bending_changes_something():
    rng = np.random.default_rng(1)
    ways = [bending.bent(b"abcdefghijklmnop" * 4, rng) for _ in range(600)]
    assert {way for way, _ in ways} == set(bending.WAYS)
    assert all((data == b"abcdefghijklmnop" * 4) == (way == "nothing") for way, data in ways
               if way in ("nothing", "longer", "flips"))  # fmt: skip
