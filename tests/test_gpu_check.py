"""The logic of tests/gpu_check.py that needs no GPU: limits, what is kept, what is left out and why, the tables."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import gpu_check
from gpu_check import FAILED, NO_CUPY, NO_GPU, PASSED, Part, check, json_lines, main, markdown, run, slug, verdict


def python(code):
    return [sys.executable, "-c", code]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a GPU that has the programs named."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def program(name, text):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    return program


def test_without_a_gpu_it_says_so(machine, capsys, tmp_path):
    for script in ("exit 9", "echo"):  # a driver that finds none, and one that says nothing
        machine("nvidia-smi", script)
        assert main(["--output", str(tmp_path / "results")]) == NO_GPU
        assert "no GPU here" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


def test_without_cupy_it_says_what_to_do(machine, capsys, monkeypatch, tmp_path):
    machine("nvidia-smi", "echo 'NVIDIA H200'")
    monkeypatch.setattr(gpu_check, "has", lambda module: lambda: False)
    nothing = [one._replace(there=lambda: False) for one in gpu_check.NEEDS]
    monkeypatch.setattr(gpu_check, "NEEDS", nothing)
    assert main(["--output", str(tmp_path)]) == NO_CUPY
    said = capsys.readouterr().out
    assert "cupy is missing: pip install cupy-cuda13x" in said
    assert "compute-sanitizer is missing" in said


def test_a_whole_run(machine, capsys, monkeypatch, tmp_path):
    """What passes, fails, takes too long and lacks something: all in both files, also what a stopped part had found."""
    machine("nvidia-smi", "echo 'NVIDIA H200'")
    monkeypatch.setattr(gpu_check, "has", lambda module: lambda: True)
    needs = [one._replace(there=lambda name=one.name: name != "torch") for one in gpu_check.NEEDS]
    monkeypatch.setattr(gpu_check, "NEEDS", needs)
    figure = {"case": "copy", "elements": 10**6, "moved_bytes": 8 * 10**6, "seconds": 0.004, "bytes_per_s": 2e9,
              "of_copy": 0.5, "target": 0.85}
    line = json.dumps(json.dumps(figure))
    slow = f"import time; print({line}, flush=True); print('{{\"cut', flush=True); time.sleep(60)"
    wrong = {"case": "topk, 2 ranks", "difference": 0.25, "passed": False}
    parts = [
        Part("good", python("print('fine')"), 60),
        Part("bad", python(f"print({json.dumps(json.dumps(wrong))}); raise SystemExit(2)"), 60),
        Part("slow", python(slow), 3),
        Part("PyTorch", python("raise SystemExit(1)"), 60, ("cupy", "torch")),
    ]
    monkeypatch.setattr(gpu_check, "parts", lambda: parts)
    assert main(["--output", str(tmp_path)]) == FAILED
    found = json.loads((tmp_path / "nvidia-h200.json").read_text())
    assert [one["outcome"] for one in found["parts"]] == ["passed", "failed", "stopped", "skipped"]
    assert found["parts"][2]["results"] == [figure]
    text = (tmp_path / "nvidia-h200.md").read_text()
    assert "| PyTorch | skipped: torch is missing: pip install torch, with CUDA | |" in text.replace("|  |", "| |")
    assert "| copy | 1,000,000 | 8.0 | 4.000 | 2 | 50% | 85%, MISSED |" in text
    assert "bad: topk, 2 ranks: 0.25" in text
    assert text.strip() in capsys.readouterr().out


def test_what_does_not_fit_is_left_out():
    kept = []
    parts = [Part("first", python("import time; time.sleep(1.2)"), 60), Part("second", python("pass"), 60)]
    outcomes = check(parts, gpu_check.LEAST + 1, lambda all_: kept.append(len(all_)))
    assert [one["outcome"] for one in outcomes] == ["passed", "skipped"]
    assert "s were left of 6 s" in outcomes[1]["reason"]
    assert kept == [1, 2]  # after each part
    assert verdict(outcomes) == PASSED


def test_a_part_is_killed_with_its_children(tmp_path):
    marker = tmp_path / "alive"
    child = f"import time, pathlib; time.sleep(4); pathlib.Path({str(marker)!r}).touch()"
    part = Part("parent", python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"), 60)
    outcome = run(part, 1.5)
    assert outcome["outcome"] == "stopped"
    assert outcome["limit_s"] == 1.5
    import time

    time.sleep(3.5)
    assert not marker.exists()


def test_only_whole_objects_are_read():
    assert json_lines('noise\n{"a": 1}\n{"b": [\n[1]\n{"c": 2}') == [{"a": 1}, {"c": 2}]


@pytest.mark.parametrize(("name", "expected"), [("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"), (" A100 ", "a100")])
def test_names_of_files(name, expected):
    assert slug(name) == expected


def test_a_share_of_the_pinned_copy_counts_as_well():
    one = {"case": "staging", "elements": 5, "moved_bytes": 40, "seconds": 1.0, "bytes_per_s": 40.0,
           "of_pinned_copy": 0.9, "target": 0.8}
    found = {"gpu": "g", "time": "t", "parts": [{"part": "p", "outcome": "passed", "seconds": 1, "results": [one]}]}
    assert "| 90% | 80%, met |" in markdown(found)


def test_aims_that_are_no_shares():
    one = {"case": "topk", "elements": 5, "moved_bytes": 40, "seconds": 1.0, "bytes_per_s": 40.0, "of_copy": 0.1}
    assert "| 5 times our time: 6.3, met |" in gpu_check.figure({**one, "times_ours": 6.28, "least_times_ours": 5})
    late = {**one, "beyond_memory_s": 201e-6, "most_beyond_s": 150e-6, "queued_ahead": False}
    assert "150 us beyond its memory's time: 201, MISSED; with time that the host took" in gpu_check.figure(late)


def test_a_wrong_result_is_named():
    found = {"gpu": "g", "time": "t", "parts": [
        {"part": "p", "outcome": "failed", "results": [{"case": "add", "passed": False},
                                                       {"case": "x", "passed": False, "error": "KeyError: 1"}]}]}
    assert "p: add: the result is not what it should be" in markdown(found)
    assert "p: x: KeyError: 1" in markdown(found)


def test_every_part_fits_into_ten_minutes_and_names_what_it_needs(monkeypatch):
    monkeypatch.setattr(gpu_check, "compiled", lambda: True)
    parts, known = gpu_check.parts(), {one.name for one in gpu_check.NEEDS}
    assert all(set(part.needs) <= known and part.seconds <= 200 for part in parts)
    scripts = [word for part in parts for word in part.command if word.endswith(".py")]
    assert all((gpu_check.ROOT / script.removeprefix("--ignore=")).exists() for script in scripts)
    assert gpu_check.SECONDS <= 600
