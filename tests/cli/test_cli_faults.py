"""Ranks that hang, dawdle, raise or are killed in the middle of a collective: the job ends soon, and says why."""

from __future__ import annotations

import os
import re
from itertools import cycle
from pathlib import Path

import pytest
from launching import ENVIRONMENTS
from progress import slowed

from mpicomp.comm.safety.fault_injection import Fault, parse
from mpicomp.errors import InvalidArgument
from mpicomp.schemes.exchanges import EXCHANGES

CALL = [str(Path(__file__).resolve().parent / "faulty_call.py")]
TIMED_OUT = 70


def hang(job, what, times, **environment):
    timeout = slowed(1.5)
    ended = job(CALL, what, times, MPICOMP_TIMEOUT=timeout, **environment)
    assert ended.code == TIMED_OUT, ended.err
    assert "END" not in ended.out
    assert f"longer than MPICOMP_TIMEOUT={timeout}; stopping all ranks" in ended.err
    for rank in range(job.ranks):  # every rank speaks, also the one that all wait for
        assert re.search(rf"\[mpicomp\] rank {rank} of {job.ranks} \(host .+, pid \d+\) is ", ended.err), ended.err
    return ended.err


def test_a_message_that_never_comes(job):
    err = hang(job, "ring", "20", MPICOMP_FAULT="hang:rank=1,call=7,message=2")
    here = r"in #7 Allreduce sum 1000 elements float64 ring"
    assert re.search(rf"rank 0 of .* is {here} for \d+\.\d s", err)
    assert re.search(r"waits for \d+ bytes from rank \d \(no\. \d+ of the latest \d+ messages\)", err)
    assert re.search(r"#6 Allreduce sum 1000 elements float64 ring: began \d+\.\d+ s ago, took \d+\.\d+ ms", err)
    assert re.search(rf"ranks 0-{job.ranks - 1}: {here}", err)  # the one that hangs has begun the call, too
    assert "thread MainThread" in err and "fault_injection.py" in err and "in _hang" in err


def test_a_rank_that_does_not_come(one_job):
    err = hang(one_job, "compute", "2")
    assert re.search(r"rank 1: outside, after #1 Allreduce sum 10 elements float64 auto", err)


@pytest.mark.long("another call that hangs")
def test_a_reducer_step(one_job):
    err = hang(one_job, "topk:density=0.1", "20", MPICOMP_FAULT="hang:rank=0,call=9")
    assert re.search(r"in #\d+ step \d+ of topk:\S+", err)


@pytest.mark.parametrize(("what", "words"), [("Barrier", "Barrier"), ("bcast", "bcast dict 0")])
def test_a_collective_of_mpi4py(one_job, what, words):
    err = hang(one_job, what, "20", MPICOMP_FAULT="hang:rank=0,call=5")
    assert f"in #5 {words} for " in err


@pytest.mark.long("another call that hangs")
def test_the_helper_thread_is_watched(job):
    err = hang(job, "in-flight", "20", MPICOMP_FAULT="hang:rank=1,call=5")
    assert "thread mpicomp:" in err


def test_without_threads_in_mpi(job):
    """Then a rank may not ask the others, nor abort through MPI; the launcher ends the job."""
    timeout = slowed(1.5)
    ended = job(CALL, "ring", "20", MPICOMP_FAULT="hang:rank=1,call=5", MPICOMP_TIMEOUT=timeout,
                MPI4PY_RC_THREAD_LEVEL="funneled")  # fmt: skip
    assert ended.code == TIMED_OUT, ended.err
    assert f"longer than MPICOMP_TIMEOUT={timeout}; stopping all ranks" in ended.err
    assert "ranks of this communicator are" not in ended.err
    assert "last calls" in ended.err and "thread MainThread" in ended.err


@pytest.mark.long("another call that hangs")
def test_late_small_call(one_job):
    """Plain calls that went straight to MPI are in the history."""
    err = hang(one_job, "small", "100", MPICOMP_FAULT="hang:rank=1,call=90")
    assert re.search(r"#89 Allreduce 10 elements float64 sum native: began \d", err)


@pytest.mark.long("another call that hangs")
def test_a_small_call_that_is_being_compared(one_job):
    """The others wait for rank 1 in the comparison, which the first calls all have, not in MPI's all-reduce."""
    err = hang(one_job, "small", "20", MPICOMP_FAULT="hang:rank=1,call=5")
    assert "in #5 Allreduce 10 elements float64 sum native, in agreement" in err


@pytest.mark.parametrize("what", ["ring", "dense"])
def test_slow_ranks_raise_no_alarm(one_job, what):
    ended = one_job(CALL, what, "3", MPICOMP_FAULT="slow:rank=1,seconds=0.4", MPICOMP_TIMEOUT=slowed(20))
    assert ended.code == 0, ended.err
    assert ended.out.count("END") == one_job.ranks
    assert "[mpicomp]" not in ended.err
    assert ended.seconds > 1.2  # it was slow indeed


def in_turn(cases):
    """Return each case with one MPI, in turn; all but the first are long."""
    first, *others = zip(cases, cycle(reversed(ENVIRONMENTS)))
    return [first, *(pytest.param(*pair, marks=pytest.mark.long("another place in the job")) for pair in others)]


KILLED_IN = ["native", "ring", "halving_doubling", "direct", "node_shared", "in-flight", "broadcast", "gather", "agree",
             "scalecom:chunk=10", "gtopk:density=0.1", "oktopk:density=0.1", "powersgd:rank=2", "onebit"]  # fmt: skip


@pytest.mark.parametrize(("what", "job"), in_turn(KILLED_IN), indirect=["job"])
def test_kill_9_ends_the_job(job, what):
    """Under the MPIs in turn: that a launcher notices is a matter of the process, not of what it was in."""
    rank = 0 if KILLED_IN.index(what) % 4 < 2 else job.ranks - 1
    ended = job(CALL, what, "2000", MPICOMP_FAULT=f"kill:rank={rank},call=6")
    text = ended.out + ended.err
    assert ended.code != 0
    assert "END" not in ended.out
    assert f"MPICOMP_FAULT: kill on rank {rank} in call 6" in text
    assert re.search(r"signal 9|SIGNAL: 9|EXIT CODE: 9|exited on signal|RankLeft", text), text


@pytest.mark.parametrize(("message", "job"), in_turn("13"), indirect=["job"])
def test_kill_9_in_the_middle_of_a_ring(job, message):
    ended = job(CALL, "ring", "2000", MPICOMP_FAULT=f"kill:rank=1,call=9,message={message}")
    assert ended.code != 0
    assert f"in call 9 (message {message})" in ended.err


@pytest.mark.parametrize(("kind", "what"), [("segv", "ring"), ("exit", "topk:density=0.1")])
def test_other_sudden_ends(job, kind, what):
    ended = job(CALL, what, "2000", MPICOMP_FAULT=f"{kind}:rank=1,call=6")
    assert ended.code != 0 and "END" not in ended.out
    assert f"MPICOMP_FAULT: {kind} on rank 1 in call 6" in ended.err


@pytest.mark.long("another call that hangs")
def test_a_stopped_rank_is_noticed(job):
    """The other ranks' watchdogs end the job, and with it the stopped process."""
    timeout = slowed(1.5)
    ended = job(CALL, "ring", "2000", MPICOMP_FAULT="stop:rank=1,call=6", MPICOMP_TIMEOUT=timeout)
    assert ended.code != 0 and "END" not in ended.out
    assert f"longer than MPICOMP_TIMEOUT={timeout}; stopping all ranks" in ended.err
    assert "rank 1: no answer: stopped, gone" in ended.err


def test_raise_ends_the_job(job):
    ended = job(CALL, "ring", "2000", MPICOMP_FAULT="raise:rank=1,call=6")
    assert ended.code == 1
    assert re.search(r"\[mpicomp\] rank 1 of .*InjectedFault: MPICOMP_FAULT: raise on rank 1 in call 6", ended.err)


# exchange: a scheme with it, the collective in its first step and the message there before which rank 1 raises. Others
# have sent or wait for what it would answer.
INSIDE = {
    "dense": ("half", 4, 3), "leader": ("scalecom:chunk=10", 5, 2), "gather": ("topk:density=0.1", 5, 2),
    "merge": ("gtopk:density=0.1", 5, 1), "balanced": ("oktopk:density=0.1", 6, 2),
    "agreed": ("arctopk:density=0.1,row=8,width=2", 5, 2), "low-rank": ("powersgd:rank=2", 5, 2),
    "pieces": ("onebit:column=16", 5, 2), "sketch": ("sketchsgd:density=0.01,columns=64", 5, 2),
}  # fmt: skip
assert set(INSIDE) == {name for name, exchange in EXCHANGES.items() if not exchange.chooses}  # others run these
CHOSEN = INSIDE if os.environ.get("MPICOMP_SOAK") == "1" else ("leader", "balanced", "pieces")  # a launch takes seconds


@pytest.mark.parametrize(("exchange", "job"), in_turn(CHOSEN), indirect=["job"])
def test_raise_between_two_messages_of_an_exchange(job, exchange):
    scheme, call, message = INSIDE[exchange]
    ended = job(CALL, scheme, "2000", MPICOMP_FAULT=f"raise:rank=1,call={call},message={message}",
                MPICOMP_ALGORITHM="ring")  # fmt: skip
    assert ended.code != 0 and "END" not in ended.out
    who, why = rf"\[mpicomp\] rank 1 of {job.ranks} \(host .+, pid \d+\)", "MPICOMP_FAULT: raise on rank 1"
    assert re.search(rf"{who}: InjectedFault: {why} in call {call} \(message {message}\)", ended.err), ended.err
    assert "mpicomp/schemes/exchanges/" in ended.err  # the traceback goes through the exchange


def test_nonsense_in_the_environment_is_refused(one_job):
    for variable, value, text in (
        ("MPICOMP_TIMEOUT", "soon", "MPICOMP_TIMEOUT must be a number of seconds, or 0 for no limit, got 'soon'"),
        ("MPICOMP_FAULT", "kill:rank=99,call=1", "must name a rank from 0 to"),
    ):
        ended = one_job(CALL, "ring", "1", **{variable: value})
        assert ended.code == 1
        assert text in ended.err


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill:rank=2,call=17", Fault("kill", 2, 17)),
        ("raise:call=1,rank=0", Fault("raise", 0, 1)),
        ("hang:rank=1,call=3,message=4", Fault("hang", 1, 3, 4)),
        ("segv:rank=1,call=3", Fault("segv", 1, 3)),
        ("stop:rank=1,call=3", Fault("stop", 1, 3)),
        ("exit:rank=1,call=3", Fault("exit", 1, 3)),
        ("slow:rank=1,seconds=0.25", Fault("slow", 1, seconds=0.25)),
        ("slow:rank=1,seconds=2,call=5", Fault("slow", 1, 5, seconds=2.0)),
    ],
)
def test_parse(text, fault):
    assert parse(text, 4) == fault


@pytest.mark.parametrize(
    "text",
    ["kill", "kill:", "kil:rank=1,call=1", "kill:rank=1", "kill:call=1", "kill:rank=1,call=1,call=2",
     "kill:rank=1,call=0", "kill:rank=-1,call=1", "kill:rank=4,call=1", "kill:rank=1,call=x", "kill:rank= 1,call=1",
     "kill:rank=1,call=1,seconds=1", "hang:rank=1.5,call=1", "hang:rank=1,call=1,message=0", "slow:rank=1",
     "slow:rank=1,seconds=nan", "slow:rank=1,seconds=-1", "raise:rank=1,message=2", "kill:rank=1,,call=1",
     "kill:rank=1,call=" + "9" * 5000],
)  # fmt: skip
def test_parse_refuses(text):
    with pytest.raises(InvalidArgument, match="MPICOMP_FAULT"):
        parse(text, 4)
