"""The recorder of one rank: records, survival of a kill, refusals."""

import errno
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from progress import until

from mpicomp.errors import InvalidArgument, RefusedOverwrite
from mpicomp.trace import NullRecorder, Recorder, open_trace, recorder, recover, schema, validate
from mpicomp.trace.journal import Journal, journal_path
from mpicomp.trace.views import settings


def test_everything_said_is_in_the_file(solo, tmp_path):
    path = tmp_path / "run.h5"
    given = {"scheme": "topk\x1b[31m", "bits": (1e6, 2e6), "workers": None, "folder": tmp_path, "early": True,
             "force": False, "seed": 0}  # fmt: skip
    with Recorder(solo, path, title="a title", configuration=given) as recorder:
        with recorder.step(7):
            recorder.event(
                "exchange", 10, 30, algo="ring", scheme="topk:k=3", dtype="float32", op="sum",
                nbytes_dense=400, nbytes_sent=24, nbytes_recv=48, nelem=100, flags=schema.WARMUP,
            )  # fmt: skip
        with recorder.region("compute"):
            pass
        recorder.event("late", 50, 60, step=9)
        recorder.metric("loss", 7, 0.5)
    with open_trace(path) as trace:
        events = trace.events()
        row = int(np.flatnonzero(events["kind"] == trace.code("kind", "exchange"))[0])
        said = {name: trace.vocabulary(name)[events[name][row]] for name in schema.LABEL_FIELDS}
        assert said == {"kind": "exchange", "algo": "ring", "scheme": "topk:k=3", "dtype": "float32", "op": "sum"}
        numbers = ("t_start", "t_end", "nbytes_dense", "nbytes_sent", "nbytes_recv", "nelem", "step", "flags")
        assert [int(events[name][row]) for name in numbers] == [10, 30, 400, 24, 48, 100, 7, 1]
        assert sorted(events["step"].tolist()) == [-1, 7, 7, 9]
        assert trace.metrics()["loss"]["value"].tolist() == [0.5]
        assert trace.attributes["complete"] is True
        assert trace.attributes["title"] == "a title"
        assert trace.attributes["configuration"] == {**given, "scheme": "topk?[31m", "bits": [1e6, 2e6],
                                                     "folder": str(tmp_path)}  # fmt: skip
        assert settings(trace.attributes["configuration"]) == (
            f"scheme=topk?[31m bits=1000000.0,2000000.0 folder={tmp_path} early=True seed=0")  # fmt: skip
    assert validate(path) == []
    assert os.listdir(tmp_path) == ["run.h5"]


def test_steps_nest_and_errors_are_marked(solo, tmp_path):
    recorder = Recorder(solo, tmp_path / "run.h5")
    with recorder.step(1):
        with recorder.step(2):
            recorder.event("inner", 1, 2)
        recorder.event("outer", 1, 2)
    with pytest.raises(ZeroDivisionError), recorder.region("bad"):
        1 / 0  # noqa: B018
    with pytest.raises(InvalidArgument), recorder.step(2**31):
        pass
    recorder.event("later", 1, 2)
    recorder.close()
    with open_trace(tmp_path / "run.h5") as trace:
        events = trace.events()
        kinds = np.array(trace.vocabulary("kind"))[events["kind"]]
        assert sorted(zip(kinds.tolist(), events["step"].tolist(), strict=True)) == [
            ("bad", -1), ("inner", 2), ("later", -1), ("outer", 1), ("step", 1), ("step", 2),
        ]  # fmt: skip
        assert events["flags"][kinds == "bad"] == schema.ERROR


def test_many_threads_lose_nothing(solo, tmp_path):
    path, each = tmp_path / "run.h5", 20_000
    with Recorder(solo, path) as recorder:

        def work(name):
            for index in range(each):
                recorder.event(name, index, index + 1, step=index)

        threads = [threading.Thread(target=work, args=(f"thread{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with open_trace(path) as trace:
        events = trace.events("kind", "step")
    for kind in range(1, 5):
        assert np.array_equal(np.sort(events["step"][events["kind"] == kind]), np.arange(each))


def test_events_reach_the_journal_without_being_asked(solo, tmp_path):
    recorder = Recorder(solo, tmp_path / "run.h5")
    recorder.event("compute", 1, 2)
    until(lambda: Journal(journal_path(recorder.spool, 0)).n_events == 1)
    recorder.abandon()


@pytest.mark.parametrize(
    "arguments", [{"t_start": 1.5}, {"t_start": 1, "nbytes_sent": -1}, {"t_start": 1, "step": 2**40}]
)
def test_what_is_no_integer_is_refused(solo, tmp_path, arguments):
    recorder = Recorder(solo, tmp_path / "run.h5")
    with pytest.raises(InvalidArgument, match="'compute'"):
        recorder.event("compute", **arguments)
    recorder.abandon()


@pytest.mark.parametrize(("step", "value"), [(0, None), (0, "0.5"), (0, np.ones(2)), (0, 1j), (1.5, 0.5), (2**70, 0.5)])
def test_a_metric_is_one_number_of_an_integer_step(solo, tmp_path, step, value):
    with Recorder(solo, tmp_path / "run.h5") as recorder, pytest.raises(InvalidArgument, match="metric 'loss': value"):
        recorder.metric("loss", step, value)
    assert validate(tmp_path / "run.h5") == []


def test_odd_names_become_plain_ones(solo, tmp_path):
    path = tmp_path / "run.h5"
    with Recorder(solo, path) as recorder:
        recorder.event("größe\x1b[31m\0" + "x" * 100, 1, 2)
        for name in ("a/b", "../up", "a b", "", "."):
            recorder.metric(name, 0, 1.0)
    assert validate(path) == []
    with open_trace(path) as trace:
        assert trace.vocabulary("kind")[1].startswith("gr??e?[31m?xxx")
        assert sorted(trace.metrics()) == ["", ".", "../up", "a b", "a/b"]


def test_odd_names_stay_apart(solo, tmp_path):
    names = ["x" * 70 + "mean", "x" * 70 + "max", "größe", "grüße", "plain"]
    with Recorder(solo, tmp_path / "run.h5") as recorder:
        for value, name in enumerate(names):
            recorder.metric(name, 0, value)
            recorder.event(name, 1, 2)
    with open_trace(tmp_path / "run.h5") as trace:
        assert len(trace.metrics()) == len(set(trace.vocabulary("kind")[1:])) == len(names)
        assert "plain" in trace.metrics()


def test_a_title_that_is_no_unicode(solo, tmp_path):
    """As Python reads arguments and names of files."""
    title = os.fsdecode(b"caf\xe9")
    with Recorder(solo, tmp_path / "run.h5", title=title) as recorder:
        recorder.metric("loss", 0, 1.0)
    assert validate(tmp_path / "run.h5") == []
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.attributes["title"] == r"caf\udce9"


def test_more_labels_than_codes_share_the_last(solo, tmp_path, monkeypatch):
    monkeypatch.setattr("mpicomp.trace.record_buffer._MAX_LABELS", 4)
    with Recorder(solo, tmp_path / "run.h5") as recorder:
        for number in range(10):
            recorder.event(f"kind{number}", number, number + 1)
    with open_trace(tmp_path / "run.h5") as trace:
        kinds = np.array(trace.vocabulary("kind"))[trace.events()["kind"]]
        assert list(kinds) == ["kind0", "kind1", "kind2"] + ["other"] * 7


def test_null_recorder_has_the_same_methods():
    public = {name for name in dir(Recorder) if not name.startswith("_")}
    assert public == {name for name in dir(NullRecorder) if not name.startswith("_")}
    for name in ("event", "region", "step", "metric", "flush", "close", "abandon"):
        same = [list(inspect.signature(getattr(kind, name)).parameters.items()) for kind in (Recorder, NullRecorder)]
        assert [str(p) for _, p in same[0]] == [str(p) for _, p in same[1]] or name == "event"
        assert [n for n, _ in same[0]] == [n for n, _ in same[1]]
    with NullRecorder() as nothing, nothing.step(1), nothing.region("compute"):
        nothing.event("exchange", nothing.now())
        nothing.metric("loss", 0, 1.0)
    assert not nothing.enabled and Recorder.enabled


def test_an_exception_leaves_the_journal(solo, tmp_path):
    path = tmp_path / "run.h5"
    with pytest.raises(ValueError, match="mine"), Recorder(solo, path) as recorder:
        recorder.event("compute", 1, 2)
        raise ValueError("mine")
    assert not path.exists()
    merged = recover(recorder.spool, path)
    assert merged.status == {0: "failed"} and not merged.complete and merged.n_events == 1


def test_an_existing_output_is_left_as_it_is(solo, tmp_path):
    path = tmp_path / "run.h5"
    path.write_bytes(b"precious")
    with pytest.raises(RefusedOverwrite, match="force"):
        Recorder(solo, path)
    assert path.read_bytes() == b"precious" and os.listdir(tmp_path) == ["run.h5"]
    Recorder(solo, path, force=True).close()
    assert validate(path) == []


def test_an_output_that_appears_during_the_run_is_left_as_it_is(solo, tmp_path):
    path = tmp_path / "run.h5"
    recorder = Recorder(solo, path)
    path.write_bytes(b"precious")
    with pytest.raises(RefusedOverwrite):
        recorder.close()
    assert path.read_bytes() == b"precious"
    assert recover(recorder.spool, tmp_path / "other.h5").complete


def test_journals_of_a_killed_run_are_not_discarded(solo, tmp_path):
    first = Recorder(solo, tmp_path / "run.h5")
    first.abandon()
    with pytest.raises(RefusedOverwrite, match="recover"):
        Recorder(solo, tmp_path / "run.h5")
    Recorder(solo, tmp_path / "run.h5", force=True).close()


def test_a_missing_folder_is_named(solo, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Recorder(solo, tmp_path / "nowhere" / "run.h5")


def test_a_spool_of_its_own(solo, tmp_path):
    (tmp_path / "mine").mkdir()
    Recorder(solo, tmp_path / "run.h5", spool=tmp_path / "mine").close()
    Recorder(solo, tmp_path / "run2.h5", spool=tmp_path / "made" / "deep").close()
    assert sorted(os.listdir(tmp_path)) == ["made", "mine", "run.h5", "run2.h5"]


def in_child(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )


SOLO = "class Solo:\n rank=0; size=1\n def fail_together(self, e=None):\n  if e: raise e\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody; others cannot be refused reliably")
def test_no_permission(tmp_path):
    tmp_path.chmod(0o755)
    code = SOLO + (
        "import os, sys; from mpicomp.trace import Recorder\n"  # imported before the sources may become unreadable
        "os.setuid(65534)\n"
        "try: Recorder(Solo(), sys.argv[1])\n"
        "except PermissionError as e: print('refused', e)\n"
    )
    done = in_child(code, tmp_path / "run.h5")
    assert done.stdout.startswith("refused"), done.stderr
    assert "another path" in done.stdout and not os.listdir(tmp_path)


def test_a_full_disk_before_the_start_is_named(solo, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(recorder.journal, "JournalWriter", full)
    with pytest.raises(OSError, match=f"trace in {tmp_path}/run.h5.spool: No space left on device; give another path"):
        Recorder(solo, tmp_path / "run.h5")
    assert not os.listdir(tmp_path)


def test_a_full_disk_stops_the_trace_and_not_the_training(tmp_path):
    code = SOLO + (
        "import os, resource, sys, time; from mpicomp.trace import Recorder\n"
        "r = Recorder(Solo(), sys.argv[1]); soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))\n"
        "for batch in range(5):\n"
        "    for i in range(4000): r.event('compute', i, i + 1)\n"
        "    r.flush()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))\n"
        "print('trained'); r.close()\n"
    )
    done = in_child(code, tmp_path / "run.h5")
    assert done.stdout == "trained\n", done.stderr
    assert done.stderr.count("training goes on") == 1
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.status() == ["truncated"] and trace.attributes["complete"] is False
        table = trace.table("ranks")
    assert table["n_events"][0] == 4000 and table["n_dropped"][0] == 16_000


def test_a_full_disk_at_the_merge_is_one_error_and_the_journals_stay(tmp_path):
    """Many small columns, which HDF5 writes at the end; it may not crash or report each of them."""
    code = SOLO + (
        "import resource, sys; from mpicomp.trace import Recorder\n"
        "r = Recorder(Solo(), sys.argv[1])\n"
        "for i in range(50): r.metric(f'm{i}', i, i)\n"
        "r.event('compute', 0, 1); r.flush()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))\n"
        "try: r.close()\n"
        "except OSError as error: print(error)\n"
    )
    done = in_child(code, tmp_path / "run.h5")
    assert done.stderr == "" and done.returncode == 0
    assert done.stdout.startswith(f"cannot write {tmp_path}/run.h5: File too large; make room there")
    assert os.listdir(tmp_path) == ["run.h5.spool"]
    assert recover(tmp_path / "run.h5.spool", tmp_path / "run.h5").n_events == 1


WRITER = SOLO + (
    "import sys; from mpicomp.trace import Recorder\n"
    "r = Recorder(Solo(), sys.argv[1]); i = 0\n"
    "while True:\n"
    "    for _ in range(500):\n"
    "        r.event('compute', r.now(), step=i); i += 1\n"
    "    if i % 2500 == 0:\n"
    "        r.flush(); print(i, r.now(), flush=True)\n"
)


@pytest.mark.parametrize("trial", range(10))
def test_kill_at_a_random_time(tmp_path, trial):
    """Nothing that flush() acknowledged is lost."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / "run.h5"], stdout=subprocess.PIPE, text=True)
    acknowledged = writer.stdout.readline()
    time.sleep(np.random.default_rng(trial).uniform(0, 0.3))
    writer.send_signal(signal.SIGKILL)
    acknowledged = (acknowledged + writer.communicate()[0]).rpartition("\n")[0].splitlines()[-1]
    merged = recover(tmp_path / "run.h5.spool", tmp_path / "run.h5")
    assert merged.status[0] in ("killed", "torn") and not merged.complete
    assert merged.n_events >= int(acknowledged.split()[0])
    with open_trace(tmp_path / "run.h5") as trace:
        events = trace.events("step")
    assert np.array_equal(events["step"], np.arange(merged.n_events))


def test_the_flush_thread_saves_what_nobody_flushed(tmp_path):
    code = WRITER.replace("r.flush(); print", "print").replace("while True", "for _ in range(5)") + (
        "import time; print('idle', flush=True); time.sleep(60)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, tmp_path / "run.h5"], stdout=subprocess.PIPE, text=True)
    while writer.stdout.readline() != "idle\n":
        pass
    until(lambda: Journal(journal_path(tmp_path / "run.h5.spool", 0)).n_events == 2500)
    writer.kill()
    writer.communicate()
    assert recover(tmp_path / "run.h5.spool", tmp_path / "run.h5").n_events == 2500


def test_leaving_without_close_loses_nothing(tmp_path):
    code = SOLO + (
        "import sys; from mpicomp.trace import Recorder\nr = Recorder(Solo(), sys.argv[1]); r.event('compute', 1, 2)\n"
    )
    assert in_child(code, tmp_path / "run.h5").returncode == 0
    assert recover(tmp_path / "run.h5.spool", tmp_path / "run.h5").n_events == 1


def test_a_forked_child_does_not_write_its_parents_events(tmp_path):
    code = SOLO + (
        "import os, sys; from mpicomp.trace import Recorder\n"
        "r = Recorder(Solo(), sys.argv[1]); r.event('compute', 1, 2)\n"
        "child = os.fork()\n"
        "if not child: r.event('child', 1, 2); r.flush(); sys.exit(0)\n"
        "os.waitpid(child, 0); r.close()\n"
    )
    assert in_child(code, tmp_path / "run.h5").returncode == 0
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.vocabulary("kind") == ["none", "compute"] and len(trace.events("rank")["rank"]) == 1


def test_recording_imports_neither_hdf5_nor_mpi():
    code = SOLO + (
        "import sys, tempfile, os; import mpicomp.trace; from mpicomp.trace import Recorder\n"
        "r = Recorder(Solo(), os.path.join(tempfile.mkdtemp(), 'run.h5')); r.event('compute', 1, 2)\n"
        "print('h5py' in sys.modules, 'mpi4py' in sys.modules); r.close(); print('h5py' in sys.modules)\n"
    )
    assert in_child(code).stdout.split() == ["False", "False", "True"]


def test_a_stalled_disk_bounds_the_memory(solo, tmp_path, monkeypatch):
    monkeypatch.setattr("mpicomp.trace.record_buffer._MAX_PENDING", 8192)
    recorder = Recorder(solo, tmp_path / "run.h5")
    monkeypatch.setattr(recorder._buffer._wake, "set", lambda: None)  # a thread that does not come round
    for index in range(20_000):
        recorder.event("compute", index, index + 1)
        assert len(recorder._rows) <= 8192
    monkeypatch.undo()
    recorder.abandon()


def test_what_went_wrong_is_logged_once(solo, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="mpicomp.trace"):
        recorder = Recorder(solo, tmp_path / "run.h5")
        recorder.abandon()
        recorder.abandon()
        recorder.close()
    assert len(caplog.records) == 1 and "trace recover" in caplog.text
