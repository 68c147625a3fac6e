"""Inputs of commands: machines, models (a built-in name, a file, a PyTorch factory), lists of numbers."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import click

from .._util.suggestions import did_you_mean
from ..errors import InvalidArgument, MpicompError
from ..simulate import machine as machines
from ..simulate import models
from ..simulate.machine import Machine
from ..simulate.models import BUILT_IN, Model
from . import config
from .options import Decorator, option, section
from .outcome import FOLDER_GONE

model_options = section(
    "Model",
    option("--model", "model_name", required=True, metavar="MODEL",
           help=f"{', '.join(BUILT_IN)}, a number of elements (25M), a file of layers, or module:factory of a PyTorch "
                "model."),
    option("--compute-time", type=click.FloatRange(0), metavar="SECONDS", help="Computing time per step."),
    option("--tflops", type=click.FloatRange(0, min_open=True), metavar="X",
           help="Instead of --compute-time: 10^12 operations per second that a rank really reaches."),
    option("--batch", type=click.IntRange(1), default=8, help="Samples per rank and step."),
)  # fmt: skip


def machine_option(required: bool, use: str) -> Callable[..., Decorator]:
    """The option ``--machine`` of commands that read one."""
    return option("-m", "--machine", "machine_file", required=required, metavar="FILE",
                  help=f"{use} (JSON or TOML; mpicomp tune --machine writes it).")


def document(path: str) -> Any:
    """The contents of a JSON file, or of a TOML file (by its suffix)."""
    try:
        text = Path(path).read_text()
        return config.parse_toml(text) if path.endswith(".toml") else json.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise MpicompError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except ValueError as error:
        raise InvalidArgument(f"{path} is neither JSON nor (if its name ends in .toml) TOML: {error}") from None


def machine(path: str) -> Machine:
    """The machine that the file describes."""
    return machines.load(document(path), path)


def model(text: str) -> Model:
    """A built-in model, a number of elements, ``module:factory`` of a PyTorch model, or a file of layers."""
    found = models.named(text)
    if found is not None:
        return found
    if os.path.exists(text):
        return models.from_document(document(text), text)
    module, colon, factory = text.partition(":")
    if colon and module and factory:
        return _torch_model(text)
    raise InvalidArgument(f"no model {text!r}{did_you_mean(text, BUILT_IN)}: expected one of {', '.join(BUILT_IN)}, a "
                          "number of elements such as 25M, a file of layers, or module:factory of a PyTorch model")


@contextmanager
def importing(text: str) -> Iterator[Any]:
    """Import ``module:name``; within the block the working directory is on the path, as for python -m."""
    module, _, name = text.partition(":")
    try:
        folder = os.getcwd()
    except FileNotFoundError as error:
        raise InvalidArgument(FOLDER_GONE) from error
    sys.path.insert(0, folder)
    try:
        yield getattr(importlib.import_module(module), name)
    finally:
        sys.path.remove(folder)  # the module may have changed the working directory


def _torch_model(text: str) -> Model:
    """The parameters of the model that a factory makes; its FLOPs are not known."""
    try:
        with importing(text) as make:
            parameters = [(name, tuple(one.shape)) for name, one in make().named_parameters()]
    except (ImportError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"{text} gives no PyTorch model ({type(error).__name__}: {error}): expected an "
                              "importable module and a function in it that needs no arguments") from error
    return models.from_document({"name": text, "layers": [{"name": n, "shape": s or (1,)} for n, s in parameters]},
                                text)


def rank_numbers(text: str) -> list[int]:
    """The numbers in ``8,64,512``."""
    words = text.replace(" ", "").split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise InvalidArgument(f"--ranks takes numbers of ranks from 1 on, such as 8,64,512, got {text!r}")
    return list(dict.fromkeys(map(int, words)))


def compute_time(chosen: Model, seconds: float | None, tflops: float | None, batch: int,
                 function: str | None = None) -> float:  # fmt: skip
    """Computing time per step: given, or from the model's FLOPs at a speed; 0 if a ``function`` is to be timed."""
    ways = {"--compute-time": seconds, "--tflops": tflops, "--compute": function}
    given = [option for option, value in ways.items() if value is not None]
    if len(given) > 1:
        raise InvalidArgument(f"{' and '.join(given)} say the same thing: give one of them")
    for option_name, number in (("--compute-time", seconds), ("--tflops", tflops)):
        if number is not None and not isfinite(number):
            raise InvalidArgument(f"{option_name} must be a finite number, got {number:g}")
    if seconds is not None:
        return seconds
    return chosen.compute_time(batch, tflops * 1e12) if tflops is not None else 0.0
