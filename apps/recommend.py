"""Neural collaborative filtering by PyTorch, on the common loop: GMF, MLP and NeuMF on who rated what.

For every pair of the training data some items are drawn that the user has not rated, new ones every epoch; the network
learns to tell them from the pair. Evaluation ranks each user's held-out item among 99 that the user has not rated.

Reference: He et al., Neural collaborative filtering, WWW 2017.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from mpicomp.errors import InvalidArgument

from .batches import Draws, mixed
from .ratings import Ratings
from .torch_model import TorchModel, functional, nn, seeded, torch

RANKED = 99  # items beside the held-out one
CUTOFF = 10
BLOCK = 500  # users evaluated at once
SPREAD = 0.01  # of the initial embeddings
COUNT_BITS = 20  # of the number of items in a draw
EVALUATION = 1 << 63 - COUNT_BITS  # and more are the numbers of its draws; those of training lie below


class NCF(nn.Module):
    """Model of the probability that a user rates an item, as a logit.

    GMF: a weighted sum of the products of both embeddings. MLP: layers on both, side by side. NeuMF: the features of
    both, each with embeddings of its own.

    Parameters
    ----------
    users, items : int
    kind : {"gmf", "mlp", "neumf"}
    factors : int
        Numbers in an embedding of GMF.
    layers : sequence of int
        Inputs of MLP (an embedding of user and of item have half of it each), and neurons of its layers.
    dropout : float
        Before each of these layers.
    """

    def __init__(self, users: int, items: int, kind: str, factors: int, layers: tuple[int, ...],
                 dropout: float) -> None:  # fmt: skip
        super().__init__()
        self.products = kind in ("gmf", "neumf")
        self.layered = kind in ("mlp", "neumf")
        features = 0
        if self.products:
            self.user_factors, self.item_factors = _embedding(users, factors), _embedding(items, factors)
            features += factors
        if self.layered:
            self.user_inputs, self.item_inputs = (_embedding(n, layers[0] // 2) for n in (users, items))
            parts = ((nn.Dropout(dropout), nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(layers))
            self.tower = nn.Sequential(*(part for three in parts for part in three))
            features += layers[-1]
        self.output = nn.Linear(features, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        features = []
        if self.products:
            features.append(self.user_factors(users) * self.item_factors(items))
        if self.layered:
            both = torch.cat([self.user_inputs(users), self.item_inputs(items)], dim=-1)
            features.append(self.tower(both))
        return self.output(torch.cat(features, dim=-1)).squeeze(-1)


def _embedding(n: int, width: int) -> nn.Embedding:
    embedding = nn.Embedding(n, width)
    nn.init.normal_(embedding.weight, std=SPREAD)
    return embedding


NETWORKS = ("gmf", "mlp", "neumf")


class Recommend(TorchModel):
    """The task that ``loop.train`` runs; see there for what each name means.

    Parameters
    ----------
    data : Ratings
    seed : int
        Of initial weights, dropout, negatives and what is ranked.
    network : {"neumf", "gmf", "mlp"}
    factors, layers, dropout
        See ``NCF``.
    negatives : int
        Items not rated, for each pair in training.
    rank, ranks : int
        Whose share of the users is evaluated here.
    """

    name = "recommend"
    metric, better = f"hr@{CUTOFF}", "higher"
    further = (f"ndcg@{CUTOFF}",)
    batches = Draws

    def __init__(self, data: Ratings, seed: int, network: str = "neumf", rank: int = 0, ranks: int = 1, *,
                 factors: int = 8, layers: tuple[int, ...] = (32, 16, 8), dropout: float = 0.0,
                 negatives: int = 4) -> None:  # fmt: skip
        check(network, factors, layers, dropout, negatives)
        self._negatives = Unrated(data, seed)
        super().__init__(lambda: NCF(data.users, data.items, network, factors, layers, dropout), seed)
        self.rows = len(data.train_users)
        self.fixed = {"network": network, "factors": factors, "layers": list(layers), "dropout": dropout,
                      "negatives": negatives, "data": data.facts()}  # fmt: skip
        self._data, self._seed, self._count = data, seed, negatives
        mine = slice(rank, None, ranks)
        self._users = data.test_users[mine]
        others = self._negatives.drawn(self._users, EVALUATION + self._users, RANKED)
        self._ranked = np.column_stack([data.test_items[mine], others])

    def gradients(self, rows: np.ndarray) -> tuple[float, dict[str, Any]]:
        """Mean cross-entropy of some pairs and what is drawn against them, and its gradient."""
        pairs, data = rows % self.rows, self._data
        users = data.train_users[pairs]
        items = np.column_stack([data.train_items[pairs], self._negatives.drawn(users, rows, self._count)])
        rated = torch.zeros(items.shape)
        rated[:, 0] = 1
        self.network.train()
        with seeded(self._seed, int(rows[0])):
            answers = self._answers(users, items)
        return self.gradients_of(functional.binary_cross_entropy_with_logits(answers, rated))

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float, int, float]:
        """Over this rank's users: sums of the losses, of the hits and of their gains; users."""
        self.network.eval()
        loss = hits = gain = 0.0
        for start in range(0, len(self._users), BLOCK):
            block = slice(start, start + BLOCK)
            answers = self._answers(self._users[block], self._ranked[block])
            rated = torch.zeros(answers.shape)
            rated[:, 0] = 1
            each = functional.binary_cross_entropy_with_logits(answers, rated, reduction="none")
            loss += each.mean(dim=1).sum().item()
            places = place_of_first(answers.numpy())
            hit = places < CUTOFF
            hits, gain = hits + float(hit.sum()), gain + float((1 / np.log2(places[hit] + 2)).sum())
        return loss, hits, len(self._users), gain

    def _answers(self, users: np.ndarray, items: np.ndarray) -> torch.Tensor:
        """Logits of users, shape (n,), with items, shape (n, m)."""
        every = torch.from_numpy(users)[:, None].expand(items.shape)
        return self.network(every, torch.from_numpy(items))


def place_of_first(answers: np.ndarray) -> np.ndarray:
    """Number of others in a row that are not below the first: equal answers for all find nothing, and NaN neither."""
    return (~(answers[:, 1:] < answers[:, :1])).sum(axis=1)


class Unrated:
    """Random items that users have not rated, by seed and number of the draw alone: the same on any rank."""

    def __init__(self, data: Ratings, seed: int) -> None:
        self._items, self._seed = data.items, seed
        pairs = [users * data.items + items for users, items in
                 ((data.train_users, data.train_items), (data.test_users, data.test_items))]  # fmt: skip
        self._rated = np.sort(np.concatenate(pairs))
        most = int(np.bincount(self._rated // data.items).max())
        if data.items - most < RANKED:
            raise InvalidArgument(f"every user must have at least {RANKED} items not rated, to rank the held-out one "
                                  f"among, got a user with {most} ratings of {data.items} items: use data with more")

    def drawn(self, users: np.ndarray, draws: np.ndarray, count: int) -> np.ndarray:
        """For each user ``count`` items, with replacement; shape (n, count), int64. ``draws`` are whole numbers."""
        numbers = draws.astype(np.uint64)[:, None] << np.uint64(COUNT_BITS)
        what = mixed(numbers + np.arange(count, dtype=np.uint64), self._seed)
        owners = np.repeat(users, count).reshape(len(users), count)
        items = self._chosen(what)
        again = self._has(owners, items)
        while again.any():
            what[again] = mixed(what[again], self._seed)
            items[again] = self._chosen(what[again])
            again[again] = self._has(owners[again], items[again])
        return items

    def _chosen(self, words: np.ndarray) -> np.ndarray:
        return (words % np.uint64(self._items)).astype(np.int64)

    def _has(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        pairs = users * self._items + items
        places = np.searchsorted(self._rated, pairs)
        return self._rated[np.minimum(places, self._rated.size - 1)] == pairs


def check(network: str, factors: int, layers: tuple[int, ...], dropout: float, negatives: int) -> None:
    """Refuse a network that cannot be, with InvalidArgument."""
    if network not in NETWORKS:
        raise InvalidArgument(f"network must be one of {', '.join(NETWORKS)}, got {network!r}")
    if len(layers) < 2 or min(layers) < 1 or layers[0] % 2:
        raise InvalidArgument(f"layers must be at least two numbers of neurons, the first even, got {layers}")
    for name, value in (("factors", factors), ("negatives", negatives)):
        if not 1 <= value < 1 << COUNT_BITS:
            raise InvalidArgument(f"{name} must be 1 to {(1 << COUNT_BITS) - 1}, got {value}")
    if not 0 <= dropout < 1:
        raise InvalidArgument(f"dropout must be in [0, 1), got {dropout}")
