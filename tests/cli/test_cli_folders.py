"""Output into a folder that takes no files: one line that names it, before any work, whoever the user is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

NOT_WRITABLE = Path("/sys")  # a kernel's own: not even root makes files there
BENCH = ["bench", "--sizes", "1K", "--iters", "2"]
TRAIN = ["train", "logreg", "--data", "synthetic:n=60,d=10", "--epochs", "1"]


@pytest.mark.skipif(not NOT_WRITABLE.is_dir(), reason="no /sys here")
@pytest.mark.parametrize(
    ("words", "option", "name"),
    [(BENCH, "-J", "mpicomp.json"), (BENCH, "--plot", "mpicomp.png"), (TRAIN, "--trace", "mpicomp.h5"),
     (TRAIN, "--checkpoint", "mpicomp")],
)  # fmt: skip
def test_a_folder_that_takes_no_files(alone, command, words, option, name):
    before = set(os.listdir(NOT_WRITABLE))
    ended = alone([*command], *words, option, str(NOT_WRITABLE / name))
    assert ended.code == 1 and ended.out == ""
    assert ended.err.startswith("Error: ") and ended.err.count("\n") == 1, ended.err
    assert str(NOT_WRITABLE / name) in ended.err
    assert any(said in ended.err for said in ("choose another", "give another path"))
    assert set(os.listdir(NOT_WRITABLE)) == before
