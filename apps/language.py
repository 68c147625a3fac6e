"""Language models by PyTorch, on the common loop: an LSTM whose state goes on from window to window, a Transformer.

The text is cut into windows of ``bptt`` symbols; these are the loop's rows. An LSTM reads as many streams as there are
workers times rows in a step, each a piece of the text in its order, and gradients stop where a window begins (truncated
back-propagation through time). A Transformer sees a window at a time, in random order. Reference: Merity et al.,
Regularizing and optimizing LSTM language models, ICLR 2018 (windows, tied weights); Vaswani et al., NeurIPS 2017.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mpicomp.errors import InvalidArgument

from .batches import Batches, Draws, Streams
from .texts import Text
from .torch_model import TorchModel, functional, nn, seeded, torch

EVALUATED = 16  # streams of the held-out text: so many on any number of ranks, for the same result
HEADS = 4
_FREQUENCY = 1e4  # of the slowest position signal

State = tuple[torch.Tensor, ...]  # h and c, each (layers, streams, width), of an LSTM; of a Transformer nothing


class LSTM(nn.Module):
    """Embedding, LSTM layers and a linear layer, by default with the embedding's weights, with dropout between all."""

    stateful = True

    def __init__(self, symbols: int, width: int, layers: int, dropout: float, tied: bool) -> None:
        super().__init__()
        self.embedding, self.output = ends(symbols, width, tied)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)

    def forward(self, symbols: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        hidden, state = self.lstm(self.dropout(self.embedding(symbols)), state)
        return self.output(self.dropout(hidden)), state


class Transformer(nn.Module):
    """Attention to the symbols before, within a window; sines for positions, normalisation before each part."""

    stateful = False

    def __init__(self, symbols: int, width: int, layers: int, dropout: float, tied: bool) -> None:
        super().__init__()
        if width % (2 * HEADS):
            raise InvalidArgument(f"width of a Transformer must be a multiple of {2 * HEADS}, got {width}")
        self.embedding, self.output = ends(symbols, width, tied)
        layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, dropout, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)
        self.width = width

    def forward(self, symbols: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        length = symbols.shape[1]
        x = self.embedding(symbols) * math.sqrt(self.width) + positions(length, self.width)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.output(self.layers(self.dropout(x), mask, is_causal=True)), state


def ends(symbols: int, width: int, tied: bool) -> tuple[nn.Embedding, nn.Linear]:
    """The first and the last layer; tied, they share their weights (Press and Wolf, EACL 2017)."""
    embedding, output = nn.Embedding(symbols, width), nn.Linear(width, symbols)
    nn.init.normal_(embedding.weight, std=width**-0.5)
    nn.init.zeros_(output.bias)
    if tied:
        output.weight = embedding.weight
    return embedding, output


def positions(length: int, width: int) -> torch.Tensor:
    """Sines and cosines of the position, at falling frequencies; shape (length, width)."""
    rates = _FREQUENCY ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


NETWORKS = {"lstm": LSTM, "transformer": Transformer}


class Language(TorchModel):
    """The task that ``loop.train`` runs; see there for what each name means.

    Parameters
    ----------
    text : Text
    seed : int
        Of the initial weights and of the dropout.
    network : str
        A name of ``NETWORKS``.
    width, layers : int
        Of the embedding and all else; of LSTM or attention.
    bptt : int
        Symbols in a window.
    dropout : float
    tied : bool
        The last layer has the embedding's weights.
    rank, ranks : int
        Whose share of the held-out text is evaluated here.
    """

    name = "language"
    metric, better = "perplexity", "lower"

    def __init__(self, text: Text, seed: int, network: str = "lstm", rank: int = 0, ranks: int = 1, *, width: int = 128,
                 layers: int = 1, bptt: int = 35, dropout: float = 0.0, tied: bool = True) -> None:  # fmt: skip
        check(network, width, layers, bptt, dropout)
        if len(text.train) <= bptt:
            raise InvalidArgument(f"bptt must be less than the {len(text.train)} symbols to train on, got {bptt}")
        super().__init__(lambda: NETWORKS[network](text.symbols, width, layers, dropout, tied), seed)
        self.rows = (len(text.train) - 1) // bptt
        self.fixed = {"network": network, "width": width, "layers": layers, "bptt": bptt, "dropout": dropout,
                      "tied": tied, "data": text.facts()}  # fmt: skip
        self._seed, self._bptt, self._dropout, self._layers, self._width = seed, bptt, dropout, layers, width
        self._train, self._rank, self._ranks = torch.from_numpy(text.train).long(), rank, ranks
        self._held_out = torch.from_numpy(text.held_out).long()
        self._streams: Streams | None = None

    def batches(self, *dealt: int) -> Batches:
        """Schedule of each worker's windows: contiguous text if the network has a state."""
        if not self.network.stateful:
            return Draws(*dealt)
        self._streams = Streams(*dealt, state=2 * self._layers * self._width)
        return self._streams

    def gradients(self, rows: np.ndarray) -> tuple[float, dict[str, Any]]:
        """Mean cross-entropy of the symbols in some windows, and its gradient; a worker's state goes on."""
        starts = torch.from_numpy(rows % self.rows * self._bptt)[:, None]
        places = starts + torch.arange(self._bptt)
        self.network.train()
        with seeded(self._seed, int(rows[0])):
            answers, state = self.network(self._train[places], self._entering(rows))
        self._carry(rows, state)
        return self.gradients_of(functional.cross_entropy(answers.flatten(0, 1), self._train[places + 1].flatten()))

    def _entering(self, rows: np.ndarray) -> State:
        """The state that the worker of some rows has come to before them."""
        if self._streams is None:
            return self._no_state(len(rows))
        kept = self._streams.entering[self._streams.worker(rows)]
        return tuple(torch.from_numpy(kept).view(2, self._layers, len(rows), self._width))

    def _carry(self, rows: np.ndarray, state: State) -> None:
        if self._streams is not None:
            kept = torch.stack(state).detach().flatten().numpy()
            self._streams.carried[self._streams.worker(rows)] = kept

    def _no_state(self, streams: int) -> State:
        zeros = torch.zeros(self._layers, streams, self._width)
        return (zeros, zeros) if self.network.stateful else ()

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float, int]:
        """Over this rank's streams of the held-out text: twice the sum of the losses, and the symbols."""
        self.network.eval()
        length = max(1, (len(self._held_out) - 1) // EVALUATED)
        starts = torch.arange(0, min(EVALUATED * length, len(self._held_out) - 1), length)[self._rank :: self._ranks]
        loss, state = 0.0, self._no_state(len(starts))
        if not len(starts):
            return 0.0, 0.0, 0
        for begin in range(0, length, self._bptt):
            places = starts[:, None] + torch.arange(begin, min(begin + self._bptt, length))
            answers, state = self.network(self._held_out[places], state)
            right = self._held_out[places + 1].flatten()
            loss += functional.cross_entropy(answers.flatten(0, 1), right, reduction="sum").item()
        return loss, loss, length * len(starts)

    @staticmethod
    def score(mean: float) -> float:
        """Perplexity: among so many symbols the model is in doubt, on average."""
        with np.errstate(over="ignore"):  # a loss that large has a perplexity of infinity
            return float(np.exp(mean))


def check(network: str, width: int, layers: int, bptt: int, dropout: float) -> None:
    """Refuse a network that cannot be, with InvalidArgument."""
    if network not in NETWORKS:
        raise InvalidArgument(f"network must be one of {', '.join(NETWORKS)}, got {network!r}")
    for name, value in (("width", width), ("layers", layers), ("bptt", bptt)):
        if value < 1:
            raise InvalidArgument(f"{name} must be at least 1, got {value}")
    if not 0 <= dropout < 1:
        raise InvalidArgument(f"dropout must be in [0, 1), got {dropout}")
