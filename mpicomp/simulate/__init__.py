"""Predicts steps on machines that are described, from the executed schedules of the real algorithms and exchanges.

Every rank's schedule runs on arrays without elements (``ghost``) over a link that writes down what it sends, awaits and
computes (``link``, ``comm``, ``tape``); all ranks' tapes (``program``) are then played on a model of the machine
(``replay``, ``network``, ``machine``) or a topology (``on_simgrid``), beside a model's computing (``models``,
``predict``). No MPI is started.
"""

from .link import Place
from .machine import Jitter, Machine, Wire
from .models import Model
from .predict import Prediction, predict, scaling
from .program import program_of, simulated
from .replay import Times, replay

__all__ = [
    "Jitter", "Machine", "Model", "Place", "Prediction", "Times", "Wire", "predict", "program_of", "replay", "scaling",
    "simulated",
]  # fmt: skip
