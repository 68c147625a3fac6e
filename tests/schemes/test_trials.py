"""The choice among candidates, with seconds and errors that the tests make up."""

import random

import numpy as np
import pytest

from mpicomp.schemes import trials
from mpicomp.schemes.trials import Trials

FAST = {"dense": 0.180, "half": 0.100, "sparse": 0.030}  # seconds of a step at 10 Gbit/s
SLOW = {"dense": 5.600, "half": 2.800, "sparse": 0.100}  # at 100 Mbit/s
ERRORS = {"dense": 0.0, "half": 1e-7, "sparse": 0.4}
NAMES = list(FAST)


class Run:
    """Steps of one job: what ran in each of them."""

    def __init__(self, seconds=None, errors=None, error=0.5, every=20, hysteresis=0.1):
        self.seconds, self.errors = dict(seconds or FAST), dict(errors or ERRORS)
        self.policy = Trials(len(NAMES), error, every, hysteresis)
        self.ran, self.spent = [], 0.0

    def steps(self, count, noise=None):
        for _ in range(count):
            name = NAMES[self.policy.candidate]
            seconds = self.seconds[name] * (noise() if noise else 1)
            if self.policy.due:
                error = self.errors[name] if self.policy.measures_error else 0.0
                self.policy.take(self.policy.mine(seconds) if self.policy.times else 0.0, error)
            else:
                self.policy.note(seconds)
            self.ran.append(name)
            self.spent += seconds
        return self

    @property
    def now(self):
        return NAMES[self.policy.candidate]


def test_a_trial_gives_each_candidate_four_steps_and_the_fastest_runs_on():
    run = Run({"dense": 0.18, "half": 0.15, "sparse": 0.14}).steps(40)
    assert run.ran == ["dense"] * 4 + ["half"] * 4 + ["sparse"] * 32
    assert run.policy.reason == "fastest"


def test_a_candidate_above_the_error_has_one_step():
    run = Run(error=0.1).steps(30)
    assert run.ran == ["dense"] * 4 + ["half"] * 4 + ["sparse"] + ["half"] * 21


def test_a_far_slower_candidate_is_abandoned_after_a_timed_step():
    order = {"dense": 0.03, "half": 0.1, "sparse": 0.18}
    run = Run(order).steps(20)
    assert run.ran == ["dense"] * 4 + ["half"] * 2 + ["sparse"] * 2 + ["dense"] * 12


def test_if_no_candidate_is_within_the_error_the_least_lossy_runs():
    run = Run(errors={"dense": 0.3, "half": 0.2, "sparse": 0.4}, error=0.1).steps(100)
    assert run.ran[3:] == ["half"] * 97 and run.policy.reason == "least-error"


@pytest.mark.parametrize(("seconds", "kept"), [(0.091, True), (0.089, False)])
def test_the_one_that_runs_is_kept_unless_beaten_by_the_hysteresis(seconds, kept):
    run = Run({"dense": 0.18, "half": 0.1, "sparse": 0.12}).steps(12)
    assert run.now == "half"
    run.seconds["half"] = 0.2  # begins a trial, in which it is as fast again
    run.steps(20)
    assert run.policy.reason == "trial"
    run.seconds = {"dense": 0.18, "half": 0.1, "sparse": seconds}
    run.steps(12)
    assert (run.now, run.policy.reason) == (("half", "kept") if kept else ("sparse", "fastest"))


@pytest.mark.parametrize(("before", "after"), [(FAST, SLOW), (SLOW, FAST)])
@pytest.mark.parametrize("error", [0.5, 0.1])
def test_after_a_change_of_the_link_the_best_runs_within_50_steps(before, after, error):
    """At whichever step of the interval between two looks the change comes."""
    allowed = [name for name in NAMES if ERRORS[name] <= error]
    for at in range(20):
        run = Run(before, error=error).steps(100 + at)
        assert run.now == min(allowed, key=before.get)
        run.seconds = dict(after)
        run.steps(50)
        assert after[run.now] <= 1.1 * min(after[name] for name in allowed)


def test_where_another_is_fastest_after_a_change_it_takes_over():
    fast = {"dense": 0.020, "half": 0.025, "sparse": 0.045}
    for at in range(20):
        run = Run(fast).steps(100 + at)
        assert run.now == "dense"
        run.seconds = dict(SLOW)
        run.steps(50)
        assert run.now == "sparse"
        run.seconds = dict(fast)
        run.steps(50)
        assert run.now == "dense"


def test_an_error_that_grows_above_its_limit_hands_over_without_a_trial():
    run = Run().steps(30)
    assert run.now == "sparse"
    run.errors["sparse"] = 0.6
    run.steps(20)
    assert run.now == "half" and run.policy.reason == "error" and "trial" not in run.ran


def test_steps_of_a_trial_without_cause_take_at_most_a_twentieth_of_the_time():
    run = Run(SLOW).steps(11)
    first, steps = run.spent, len(run.ran)
    run.steps(20_000)
    others = [SLOW[name] for name in run.ran[steps:] if name != "sparse"]
    assert others and sum(others) < 0.05 * (run.spent - first)


def test_noise_alone_soon_begins_no_more_trials():
    """Steps of one time in three, by chance: a false alarm raises the factor that counts as a change."""
    rng = random.Random(random.randrange(1 << 30))
    run = Run().steps(4000, noise=lambda: rng.choice((1, 1, 3)))
    others = sum(name != "sparse" for name in run.ran)
    assert others < 0.1 * len(run.ran)


def test_a_candidate_whose_codes_overflow_is_out():
    run = Run({"dense": 0.18, "half": 0.05, "sparse": 0.12}).steps(14)
    assert run.now == "half"
    run.policy.refuse()
    assert run.now == "sparse" and run.policy.reason == "error"
    trial = Run({"dense": 0.18, "half": 0.05, "sparse": 0.12}).steps(5)
    trial.policy.refuse()
    assert trial.steps(20).now == "sparse"


@pytest.mark.parametrize("at", [0, 1, 3, 4, 6, 9, 12, 25, 39, 40, 41])
def test_a_state_goes_on_where_it_was_taken(at):
    one = Run().steps(at)
    other = Run()
    state = one.policy.state()
    assert all(np.isfinite(value).all() for value in state.values())
    other.policy.load(state)
    one.steps(200)
    other.steps(200)
    assert one.ran[at:] == other.ran
    assert {name: value.tolist() for name, value in one.policy.state().items()} == {
        name: value.tolist() for name, value in other.policy.state().items()}  # fmt: skip


def test_the_same_numbers_give_the_same_choices():
    first, again = (Run().steps(500, noise=random.Random(5).random).ran for _ in range(2))
    assert first == again


def test_the_reason_tells_all_that_is_known():
    run = Run(error=0.1)
    assert run.policy.told(NAMES) == "tried for a few steps (nothing is measured yet)"
    run.steps(9)
    assert run.policy.told(NAMES) == ("the fastest within the error (dense: 180 ms, error 0; half: 100 ms, error 1e-07;"
                                      " sparse: error 0.4)")
    assert set(trials.REASONS) == {"trial", "fastest", "kept", "least-error", "error"}
