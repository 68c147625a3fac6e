"""Counts of a step's launches on a GPU and of the host's waits; here the kernels run on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import emulate, on_device
from launches import COLUMNS, TOLERANCE, resnet50, steps_of  # `resnet50` is of tests/gpu/models.py

from mpicomp.ops import gpu
from mpicomp.ops.search import STAGES


@pytest.fixture
def emulated(world, comm, monkeypatch):
    if world.size > 2:
        pytest.skip("more ranks queue no more")
    monkeypatch.setattr(comm._engine.link, "takes_devices", False)
    with emulate() as fake:
        if world.rank == 0:  # the others load what this one compiled
            gpu.count_nonfinite(on_device(np.ones(1, np.float32)))
        world.Barrier()
        yield fake


@pytest.mark.parametrize("layers", ["whole", "per-tensor"])
def test_a_scalecom_step_over_161_tensors(emulated, comm, seed, layers):
    """A handful of launches, whatever the number of tensors; the host waits where it has to know something."""
    seen = steps_of(comm, f"scalecom:chunk=112,beta=0.5,layers={layers}", seed, resnet50(64))
    assert seen["kernels"] <= 8, seen
    assert seen["kernel move_arrays"] == 1, seen  # gradients in
    assert seen["kernel move_sparse"] == 1, seen  # means out
    # One for NaN; and where another rank leads, one to see that its positions lie inside their chunks.
    assert seen["waits"] <= 2, seen
    assert seen.get("cupy", 0) <= 3, seen


@pytest.mark.parametrize("scheme", ["topk:density=0.01,layers=whole", "topk:density=0.01,layers=per-tensor",
                                    "threshold:lam=40", "dense", "dgc:density=0.01", "adacomp:bin=100",
                                    "randomk:layers=per-tensor", "arctopk:density=0.01,row=8,layers=per-tensor"])
def test_launches_do_not_grow_with_the_tensors(emulated, comm, seed, scheme):
    shapes = resnet50(64)
    many, few = steps_of(comm, scheme, seed, shapes), steps_of(comm, scheme, seed, shapes[:5])
    for what in ("kernels", "waits", "copies", "cupy"):  # lists of another density may be packed in another form
        assert many.get(what, 0) <= few.get(what, 0) + 2, (what, many, few)


@pytest.mark.parametrize(("scheme", "alone", "of_two"), [
    ("topk:layers=whole", (10, 2, 1, 1), (14, 5, 2, 3)), ("topk", (10, 2, 1, 1), (14, 5, 2, 3)),
    ("threshold:lam=40", (7, 2, 1, 2), (11, 5, 2, 4)), ("dgc", (12, 2, 1, 1), (16, 5, 2, 3)),
    ("gtopk", (9, 2, 0, 1), (17, 6, 2, 3)), ("sketchsgd", (16, 8, 0, 1), (16, 8, 0, 1)),
    ("oktopk", (20, 11, 2, 8), (22, 15, 4, 11)), ("oktopk:layers=per-tensor", (20, 13, 9, 11), (22, 16, 11, 12))])
def test_a_step_that_sends_lists(emulated, comm, seed, scheme, alone, of_two):
    """The table of docs/development/gpu.md: a list is written, read, measured and vouched for by what makes it."""
    seen = steps_of(comm, scheme, seed, resnet50(64), TOLERANCE)
    most = (alone, of_two)[comm.size - 1]
    for what, number in zip(COLUMNS, most, strict=True):
        assert seen.get(what, 0) <= number + 1, (what, most, seen)  # a list may be long enough for a bitmap


def test_a_dgc_step_that_estimates_thresholds(emulated, comm, seed):
    """A sample and its cuts, all that pass, once more a lowering, the largest of what passed, the rest exactly."""
    seen = steps_of(comm, "dgc:density=0.1,sample=0.1", seed, resnet50(32))
    assert seen["kernel sample"] == 1, seen
    assert seen["kernel count_digits_spans"] <= 9, seen  # three digits of the sample, of what passed, of small tensors
    assert seen["kernel select"] <= 6 + 1 + 2, seen
    assert seen["kernels"] <= 32, seen
    assert seen["waits"] <= 5 + 3 * (comm.size - 1), seen


@pytest.mark.parametrize(("nesterov", "passes"), [("no", 2), ("yes", 3)])
def test_the_momentum_of_dense_arrays_is_one_pass(emulated, comm, seed, nesterov, passes):
    """However many arrays go dense; ``axpby`` once more for those that are compressed (Nesterov: twice)."""
    seen = steps_of(comm, f"dgc:density=0.1,dense=1d,nesterov={nesterov}", seed, resnet50(64))
    assert seen["kernel axpby"] == passes, seen


def test_a_gaussiank_step_over_161_tensors(emulated, comm, seed):
    """Moments once; one count for all corrections; all that pass; the largest of what is still too many. One wait."""
    seen = steps_of(comm, "gaussiank:density=0.1,layers=per-tensor", seed, resnet50(32))
    assert seen["kernel first_threshold"] == seen["kernel correct_thresholds"] == 1, seen
    assert seen["kernel select"] <= 2 + 1, seen  # a list longer than guessed takes a second pass
    assert seen.get("kernel count_digits_spans", 0) <= 3, seen
    assert seen["kernels"] <= 16 + 4 * (comm.size - 1), seen
    assert seen["waits"] == 2 + 2 * (comm.size > 1), seen


def test_a_sidco_step_over_161_tensors(emulated, comm, seed):
    """A launch a stage; tensors in which one went too far are selected exactly. One wait, as a rule."""
    seen = steps_of(comm, "sidco:density=0.1,layers=per-tensor", seed, resnet50(32))
    stages = seen["kernel fit_stage"]
    assert seen["kernel first_threshold"] == 1, seen
    assert stages <= STAGES, seen
    more = stages > 4
    assert seen["kernel select"] <= 4 + 2 * more, seen
    assert seen.get("kernel count_digits_spans", 0) <= 2 * 3, seen
    assert seen["kernels"] <= 20 + stages + 2 * more + 4 * (comm.size - 1), seen
    assert seen["waits"] <= 2 + 2 * more + 2 * (comm.size > 1), seen


def test_a_powersgd_step_over_161_tensors(emulated, comm, seed):
    """Its products, and what makes each factor's columns orthonormal, take a launch each, and one more where sums are
    added up.
    """
    seen = steps_of(comm, "powersgd:rank=4", seed, resnet50(32), tolerance=1e-5)
    for kernel, most in (("project", 1), ("project_back", 1), ("low_rank_product", 1), ("orthogonalise", 2),
                         ("add_parts", 2)):
        assert seen.get(f"kernel {kernel}", 0) <= most, (kernel, seen)
    assert seen["kernels"] <= 24, seen
    assert seen.get("cupy", 0) <= 12, seen
    assert seen["waits"] <= 4, seen


# Kernels, CuPy's calls, small copies and waits of a step of one rank, and of one of two.
QUANTISED = {
    "onebit": ((15, 3, 1, 1), (21, 4, 1, 2)),
    "signsgd": ((11, 3, 1, 1), (13, 4, 1, 2)),
    "qsgd": ((8, 3, 1, 1), (10, 4, 1, 2)),
    "terngrad": ((10, 4, 1, 1), (12, 5, 1, 2)),
    "natural": ((11, 5, 1, 2), (16, 6, 4, 5)),
    "scaled-integer": ((7, 2, 0, 2), (7, 2, 0, 2)),
    "adacomp:bin=100": ((20, 11, 4, 6), (27, 15, 7, 8)),  # its lists may be packed in this form or that
}


@pytest.mark.parametrize("scheme", QUANTISED)
def test_steps_of_codes_with_scales(emulated, comm, seed, scheme):
    """Kernels write all of what they give, bounds are known, and of messages only the others' are looked at."""
    seen = steps_of(comm, scheme, seed, resnet50(64))
    for what, most in zip(COLUMNS, QUANTISED[scheme][comm.size - 1], strict=True):
        assert seen.get(what, 0) <= most, (what, seen)


def test_a_step_on_the_gpu_stages_what_it_sends(emulated, comm, seed):
    """Each staged vector is waited for once, and everything started has ended."""
    steps_of(comm, "scalecom:chunk=112", seed, resnet50(64))
    assert emulated.pending == 0
    assert (emulated.log.count("to_host") > 0) == (comm.size > 1)
