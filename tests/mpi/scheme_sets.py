"""Schemes that tests are parametrized over: some of every exchange and memory are quick, the others long."""

from collections.abc import Iterable

import pytest

import mpicomp

QUICK = {"auto", "dense", "dgc", "error-reset", "gtopk", "half", "localsgd", "oktopk", "onebit", "powersgd", "qsgd",
         "randomk", "scalecom", "sketchsgd", "threshold", "topk"}  # fmt: skip
LONG = pytest.mark.long("schemes of the same exchange and memory are in the quick set")


def small(name: str, options: dict[str, str]) -> str:
    """Return a scheme with those of ``options`` that it has, for short vectors and a few steps."""
    taken = mpicomp.Scheme.parse(name).options
    given = ",".join(f"{option}={value}" for option, value in options.items() if option in taken)
    return f"{name}:{given}" if given else name


def each(texts: Iterable[str]) -> list[object]:
    """Return parameters of a test: those of schemes that are not in the quick set are marked long."""
    return [pytest.param(text, marks=() if text.partition(":")[0] in QUICK else LONG) for text in texts]


def memory_of(text):
    """Return a memory of a scheme."""
    return mpicomp.Scheme.parse(text).parts(workers=1).memories[0]
