"""Parts of gpu_check.py that need no GPU: limits, results that are kept, reasons, tables, the preflight."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu_check
import gpu_machine
import gpu_report
import pytest
from gpu_check import FAILED, NO_CUPY, NO_GPU, PASSED, Part, check, main, run, slug, verdict
from gpu_machine import Finding
from gpu_report import json_lines, markdown
from progress import PATIENCE_S, slowed, until

from mpicomp import survivors


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

    gpu_machine.gpu_name.cache_clear()
    gpu_machine.probed.cache_clear()
    yield program
    gpu_machine.gpu_name.cache_clear()
    gpu_machine.probed.cache_clear()


def findings(monkeypatch, *unusable):
    """All probes answer at once."""
    answers = {name: lambda name=name: Finding(name, name not in unusable, "seen", f"get {name}", (f"wheel-of-{name}",),
                                               name not in ("torch", "compiler"))
               for name in gpu_machine.PROBES}  # fmt: skip
    monkeypatch.setattr(gpu_machine, "PROBES", answers)
    monkeypatch.setattr(gpu_machine, "has", lambda module: module not in unusable)


def test_without_a_gpu_it_says_so(machine, capsys, tmp_path):
    for script in ("exit 9", "echo"):  # a driver that finds none, and one that says nothing
        machine("nvidia-smi", script)
        gpu_machine.gpu_name.cache_clear()
        for call in ([], ["--preflight"]):
            assert main([*call, "--output", str(tmp_path / "results")]) == NO_GPU
            assert "no GPU here" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


def test_without_cupy_it_says_what_to_do(machine, capsys, monkeypatch, tmp_path):
    machine("nvidia-smi", "echo 'NVIDIA H200'")
    findings(monkeypatch, "cupy")
    assert main(["--output", str(tmp_path)]) == NO_CUPY
    assert "cupy is missing: get cupy; --preflight prints" in capsys.readouterr().out


@pytest.mark.parametrize(("unusable", "expected"), [((), PASSED), (("torch", "compiler"), PASSED), (("mpi",), FAILED)])
def test_the_preflight_names_what_to_carry(machine, capsys, monkeypatch, tmp_path, unusable, expected):
    machine("nvidia-smi", "echo 'NVIDIA H200'")
    findings(monkeypatch, *unusable)
    assert main(["--preflight", "--output", str(tmp_path / "new")]) == expected
    said = capsys.readouterr().out
    for name in gpu_machine.PROBES:
        assert f"{name} {'MISSING' if name in unusable else 'ok'}: seen" in said
    for name in unusable:
        assert f"missing: {name} (seen): get {name}" in said
    fetched = [line for line in said.splitlines() if "pip download" in line]
    version = f"--python-version {sys.version_info.major}.{sys.version_info.minor}"
    assert len(fetched) == bool(unusable) and all(version in line for line in fetched)
    assert all(line.endswith(f"-d wheels {' '.join(f'wheel-of-{n}' for n in gpu_machine.PROBES if n in unusable)}")
               for line in fetched)
    found = json.loads((tmp_path / "new" / "preflight.json").read_text())["findings"]
    assert [one["name"] for one in found if not one["usable"]] == [n for n in gpu_machine.PROBES if n in unusable]


def test_probes_that_need_no_gpu(machine, monkeypatch):
    """They answer in words whatever is missing; two ranks of this environment's MPI add up."""
    assert gpu_machine.mpi().usable and "adds up on two ranks" in gpu_machine.mpi().detail
    assert gpu_machine.space().usable and gpu_machine.pytest().usable
    assert not gpu_machine.sanitizer().usable and not gpu_machine.driver().usable
    monkeypatch.setattr(gpu_machine, "SPACE", 1 << 60)
    assert "GiB free, writable" in gpu_machine.space().detail
    monkeypatch.setattr(gpu_machine, "compiled", lambda: False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "a C++ compiler" in gpu_machine.compiler().detail
    assert gpu_machine.environment()["MPICOMP_OPS"] == "reference"


def test_a_probe_that_does_not_return_is_ended():
    assert gpu_machine.ask(python("import time; time.sleep(60)"), 0.5) == (False, "did not end within 0 s")
    assert gpu_machine.ask(python("raise KeyError('lost')")) == (False, "KeyError: 'lost'")
    assert gpu_machine.ask(["no-such-program"]) == (False, gpu_machine.ABSENT)


def test_wheels_are_installed_first(machine, capsys, monkeypatch, tmp_path):
    """A broken one is reported, and the check goes on."""
    with pytest.raises(SystemExit):
        main(["--wheels", str(tmp_path)])
    assert "--wheels needs a folder of wheels" in capsys.readouterr().err
    machine("nvidia-smi", "echo 'NVIDIA H200'")
    findings(monkeypatch)
    monkeypatch.setattr(gpu_check, "parts", lambda elements: [Part("good", python("print('fine')"), 60)])
    (tmp_path / "broken-1-py3-none-any.whl").write_text("no zip")
    until = str(time.monotonic() - gpu_check.BEGUN + PATIENCE_S)
    assert main(["--wheels", str(tmp_path), "--output", str(tmp_path), "--seconds", until]) == FAILED
    parts = json.loads((tmp_path / "nvidia-h200.json").read_text())["parts"]
    assert [(one["part"], one["outcome"]) for one in parts] == [("wheels", "failed"), ("good", "passed")]
    assert "broken" in parts[0]["output"]


def test_a_whole_run(machine, capsys, monkeypatch, tmp_path):
    """Parts that pass, fail, take too long or lack something are all in both files, with a stopped part's findings."""
    machine("nvidia-smi", "echo 'NVIDIA H200'")
    findings(monkeypatch, "torch")
    figure = {"case": "copy", "elements": 10**6, "moved_bytes": 8 * 10**6, "seconds": 0.004, "bytes_per_s": 2e9,
              "of_copy": 0.5, "target": 0.85}
    line = json.dumps(json.dumps(figure))
    slow = f"import time; print({line}, flush=True); print('{{\"cut', flush=True); time.sleep(60)"
    wrong = {"case": "topk, 2 ranks", "difference": 0.25, "passed": False}
    parts = [
        Part("good", python("print('{\"case\": \"a\", \"tests\": 3, \"passed\": true}')"), 60),
        Part("bad", python(f"print({json.dumps(json.dumps(wrong))}); raise SystemExit(2)"), 60),
        Part("slow", python(slow), 3),
        Part("PyTorch", python("raise SystemExit(1)"), 60, ("cupy", "torch")),
    ]
    monkeypatch.setattr(gpu_check, "parts", lambda elements: parts)
    until = str(time.monotonic() - gpu_check.BEGUN + PATIENCE_S)
    assert main(["--output", str(tmp_path), "--seconds", until]) == FAILED
    found = json.loads((tmp_path / "nvidia-h200.json").read_text())
    assert [one["outcome"] for one in found["parts"]] == ["passed", "failed", "stopped", "skipped"]
    assert found["parts"][2]["results"] == [figure]
    text, said = (tmp_path / "nvidia-h200.md").read_text(), capsys.readouterr().out
    assert "| good | passed | 3 of 3 |" in text and "| bad | failed | 0 of 1 |" in text
    assert "| PyTorch | skipped: torch is missing (seen): get torch |  |  |" in text
    row = "| copy | 1,000,000 | 8.0 | 4.000 | 2 | 50% | 85%, MISSED |"
    assert row in text and "bad: topk, 2 ranks: 0.25" in text
    assert text.strip() in said
    assert said.index(row) < said.index("== PyTorch")  # a part's table is printed as soon as the part has ended
    log = (tmp_path / "nvidia-h200.log").read_text()
    assert log.index("== good") < log.index("topk, 2 ranks") < log.index('{"cut')


def test_what_does_not_fit_is_left_out(tmp_path):
    kept = []
    parts = [Part("first", python("import time; time.sleep(1.2)"), 60), Part("second", python("pass"), 60)]
    until = time.monotonic() + gpu_check.GRACE + gpu_check.LEAST + 1
    outcomes = check(parts, until, tmp_path / "log", lambda all_: kept.append(len(all_)))
    assert [one["outcome"] for one in outcomes] == ["passed", "skipped"]
    assert "s were left" in outcomes[1]["reason"]
    assert kept == [1, 2]  # after each part
    assert verdict(outcomes) == PASSED


def test_a_part_that_cannot_be_started_or_kept_stops_no_other(tmp_path, capsys):
    def keep(outcomes):
        raise OSError("no space left on device")

    strange = python("print('{\"seconds\": 1, \"target\": 2}\\n{\"passed\": false}')")
    parts = [Part("lost", ["no-such-program"], 60), Part("strange", strange, 60), Part("good", python("pass"), 60)]
    outcomes = check(parts, time.monotonic() + 200, tmp_path / "log", keep)
    assert [one["outcome"] for one in outcomes] == ["failed", "passed", "passed"]
    assert "no-such-program" in outcomes[0]["reason"] and verdict(outcomes) == FAILED
    assert capsys.readouterr().out.count("the results could not be written: no space left") == 3
    assert f"strange: None: {gpu_report.WRONG}" in markdown({"gpu": "g", "time": "t", "parts": outcomes})


def test_the_start_counts(machine, monkeypatch, tmp_path):
    machine("nvidia-smi", "echo 'NVIDIA H200'")
    findings(monkeypatch)
    monkeypatch.setattr(gpu_check, "BEGUN", time.monotonic() - 479)
    monkeypatch.setattr(gpu_check, "parts", lambda elements: [Part("late", python("pass"), 60)])
    assert main(["--output", str(tmp_path)]) == PASSED
    (late,) = json.loads((tmp_path / "nvidia-h200.json").read_text())["parts"]
    assert late["outcome"] == "skipped"


def test_a_part_is_killed_with_its_children(tmp_path):
    """Also those in a group of their own, as a launcher puts ranks."""
    child = f"import os, time; print(os.getpid(), file=open({str(tmp_path / 'pid')!r}, 'w')); time.sleep(900)"
    start = f"import signal, subprocess, sys; signal.signal(15, signal.SIG_IGN); " \
            f"subprocess.run([sys.executable, '-c', {child!r}], process_group=0)"
    if sys.version_info < (3, 11):
        start = start.replace("process_group=0", "")
    limit = float(slowed(3))
    outcome = run(Part("parent", python(start), 60), limit, tmp_path / "log")
    assert outcome["outcome"] == "stopped"
    assert outcome["limit_s"] == limit
    until(lambda: survivors.process(int((tmp_path / "pid").read_text())) == (0, 0, 0))


CHECK = """
import sys
sys.path.insert(0, {tests!r})
import gpu_check, gpu_machine
gpu_machine.gpu_name, gpu_machine.has = (lambda: "GPU"), (lambda module: True)
slow = "import json, time; print(json.dumps(dict(case='first', passed=True)), flush=True); time.sleep(600)"
part = gpu_check.Part("slow", [sys.executable, "-c", slow], 600)
gpu_check.parts = lambda elements: [part, part._replace(name="next")]
sys.exit(gpu_check.main(["--output", {output!r}]))
"""


def test_a_check_that_is_told_to_end_keeps_what_it_has(tmp_path):
    code = CHECK.format(tests=str(Path(__file__).parent), output=str(tmp_path))
    with subprocess.Popen(python(code), stdout=subprocess.DEVNULL) as process:
        log = tmp_path / "gpu.log"
        until(lambda: log.exists() and "first" in log.read_text(), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == PASSED
    slow, following = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert slow["outcome"] == "stopped" and slow["results"] == [{"case": "first", "passed": True}]
    assert slow["reason"] == following["reason"] == "the check was ended by SIGTERM"
    assert following["outcome"] == "skipped"


@pytest.mark.long("collects all tests")
def test_only_tests_of_kernels_run_on_a_gpu():
    """Not those that are named after CUDA and run on the CPU alone."""
    command = [sys.executable, *gpu_check.KERNEL_TESTS, "--collect-only"]
    done = subprocess.run(command, cwd=gpu_check.ROOT, env=gpu_machine.environment(), capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False)  # fmt: skip
    files = {line.partition("::")[0].rpartition("/")[2] for line in done.stdout.splitlines() if "::" in line}
    assert {"test_many.py", "test_cuda_largest.py", "test_selection.py"} <= files
    assert not files & {"test_cuda_checked.py", "test_cuda_compiles.py", "test_large.py", "test_on_gpu.py",
                        "test_gpu_bench.py", "test_dispatch.py", "test_plain.py"}  # fmt: skip
    assert "[avx" not in done.stdout and "baseline" not in done.stdout


@pytest.mark.long("collects all tests")
def test_tests_of_kernels_report_as_they_go():
    """A line of JSON per file, and per test that failed, as all do if there is no CuPy."""
    command = [sys.executable, *gpu_check.KERNEL_TESTS[:-1], "tests/ops/test_measure.py", "tests/ops/test_sketch.py"]
    done = subprocess.run([*command, "-k", "squared or nonfinite or rows_refuses"], cwd=gpu_check.ROOT, text=True,
                          env=gpu_machine.environment(), capture_output=True, timeout=PATIENCE_S)  # fmt: skip
    results = json_lines(done.stdout)
    assert sum(one.get("tests", 1) for one in results) >= 10, done.stdout
    files = {one["case"].partition("::")[0].rpartition("/")[2] for one in results}
    assert files == {"test_measure.py", "test_sketch.py"}


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
    assert "| 5 times our time: 6.3, met |" in gpu_report.figure({**one, "times_ours": 6.28, "least_times_ours": 5})
    late = {**one, "beyond_memory_s": 201e-6, "most_beyond_s": 150e-6, "queued_ahead": False}
    assert "150 us beyond its memory's time: 201, MISSED; with time that the host took" in gpu_report.figure(late)


def test_a_wrong_result_is_named():
    found = {"gpu": "g", "time": "t", "parts": [
        {"part": "p", "outcome": "failed", "results": [{"case": "add", "passed": False},
                                                       {"case": "x", "passed": False, "error": "KeyError: 1"}]}]}
    assert "p: add: the result is not what it should be" in markdown(found)
    assert "p: x: KeyError: 1" in markdown(found)


def test_every_part_fits_and_names_what_it_needs(monkeypatch):
    for compiled in (True, False):
        monkeypatch.setattr(gpu_machine, "compiled", lambda compiled=compiled: compiled)
        parts = gpu_check.parts([5, 7])
        assert all(set(part.needs) <= set(gpu_machine.PROBES) and part.seconds <= 150 for part in parts)
        assert any(part.name == "build" for part in parts) != compiled
        assert all((gpu_check.ROOT / word).exists() for part in parts for word in part.command if word.endswith(".py"))
        assert next(part for part in parts if part.name == "benchmarks").command[-2:] == ["5", "7"]
    assert gpu_check.SECONDS <= 480
