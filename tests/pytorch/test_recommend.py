"""Collaborative filtering on the common loop: networks, negatives, ranking, resuming bit for bit."""

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch

from mpicomp.apps import loop, ratings
from mpicomp.apps.checkpoints import Keeper
from mpicomp.apps.loop_settings import LoopSettings
from mpicomp.apps.recommend import EVALUATION, NETWORKS, RANKED, Recommend, Unrated, place_of_first
from mpicomp.errors import InvalidArgument

DATA = ratings.load("synthetic:users=60,items=150,each=10,seed=2")
RATED = {(int(u), int(i)) for u, i in zip(np.append(DATA.train_users, DATA.test_users),
                                          np.append(DATA.train_items, DATA.test_items), strict=True)}  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_autograds(network):
    task, rows = Recommend(DATA, 3, network, factors=4, layers=(8, 4, 2)), np.array([5, 99, 300])
    with torch.no_grad():
        for parameter in task.network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)  # as they begin, half of the gradients are hardly there
    loss, gradients = task.gradients(rows)
    users = DATA.train_users[rows]
    items = np.column_stack([DATA.train_items[rows], Unrated(DATA, 3).drawn(users, rows, 4)])
    answers = torch.stack([task.network(torch.tensor([int(u)] * 5), torch.from_numpy(one))
                           for u, one in zip(users, items, strict=True)])  # fmt: skip
    expected = torch.nn.functional.softplus(answers)
    expected[:, 0] = torch.nn.functional.softplus(-answers[:, 0])
    expected.mean().backward()
    assert loss == pytest.approx(expected.mean().item(), rel=1e-5)
    for name, parameter in task.network.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad.numpy(), rtol=1e-4, atol=1e-7)
        assert task.parameters[name].ctypes.data == parameter.data_ptr()


def test_what_is_drawn_is_not_rated_and_follows_from_the_draw(seed):
    unrated, rng = Unrated(DATA, seed), np.random.default_rng(seed)
    users, draws = rng.integers(60, size=400), rng.integers(1 << 40, size=400)
    drawn = unrated.drawn(users, draws, 50)
    assert not {(int(u), int(i)) for u, row in zip(users, drawn, strict=True) for i in row} & RATED
    order = rng.permutation(400)
    assert np.array_equal(unrated.drawn(users[order], draws[order], 50), drawn[order])
    assert np.array_equal(Unrated(DATA, seed).drawn(users[3:4], draws[3:4], 9)[0], drawn[3, :9])
    others = (unrated.drawn(users, draws + 1, 50), unrated.drawn(users, EVALUATION + draws, 50),
              Unrated(DATA, seed + 1).drawn(users, draws, 50))  # fmt: skip
    assert all((other == drawn).mean() < 0.05 for other in others)


def test_every_item_not_rated_is_as_likely(seed):
    users = np.zeros(4000, np.int64)
    counts = np.bincount(Unrated(DATA, seed).drawn(users, np.arange(4000), 5).ravel(), minlength=DATA.items)
    rated = np.array([(0, item) in RATED for item in range(DATA.items)])
    assert rated.sum() == 10 and not counts[rated].any()
    left = DATA.items - 10
    expected = 20_000 / left
    assert ((counts[~rated] - expected) ** 2 / expected).sum() < left + 8 * (2 * left) ** 0.5  # chi squared, 8 sigma


def test_ranking_by_hand():
    answers = np.array([[5.0, 1, 2, 3], [2, 3, 1, 4], [1, 1, 1, 0], [0, 1, 2, 3], [np.nan] * 4])
    assert place_of_first(answers).tolist() == [0, 2, 2, 3, 3]
    task = Recommend(DATA, 0, "gmf")
    assert task._ranked.shape == (60, 1 + RANKED) and np.array_equal(task._ranked[:, 0], DATA.test_items)
    # a network that knows: four items go before the held-out one of user 0, none before those of the others
    task._answers = lambda users, items: torch.from_numpy(np.where(
        np.arange(100) == 0, np.where(users == 0, -4.5, 1.0)[:, None], -np.arange(100.0)))  # fmt: skip
    _, hits, count, gain = task.evaluate()
    assert (hits, count) == (60, 60) and gain == pytest.approx(59 + 1 / np.log2(4 + 2))


@pytest.mark.parametrize("ranks", [2, 7])
def test_results_do_not_depend_on_the_ranks(ranks):
    alone = Recommend(DATA, 1).evaluate()
    shares = [Recommend(DATA, 1, rank=rank, ranks=ranks).evaluate() for rank in range(ranks)]
    np.testing.assert_allclose(np.sum(shares, axis=0), alone, rtol=1e-6)


def test_it_learns(comm):
    settings = LoopSettings("topk:density=0.1", workers=2, batch=30, epochs=8, lr=0.02, optimizer="adam")
    report = loop.train(comm, Recommend(DATA, 0, "gmf"), settings)
    assert report.metric == "hr@10" and report.best > 0.25  # by chance: 0.1
    assert len(report.further["ndcg@10"]) == len(report.series) == 8
    assert 0 < report.further["ndcg@10"][-1] < report.series[-1].metric


def test_resumes_bit_for_bit(comm, tmp_path):
    def run(epochs, folder=None, resume=False):
        task = Recommend(DATA, 0, dropout=0.3)
        keeper = Keeper(comm, folder and str(folder), resume=resume)
        settings = LoopSettings("topk:density=0.1", workers=2, batch=30, epochs=epochs, optimizer="adam", lr=0.01)
        return task.parameters, loop.train(comm, task, settings, keeper=keeper)

    whole, straight = run(2)
    run(1, tmp_path / "run")
    resumed, report = run(2, tmp_path / "run", resume=True)
    assert all((whole[name] == resumed[name]).all() for name in whole)
    assert report.series == straight.series and report.further == straight.further


@pytest.mark.parametrize(("changes", "words"), [
    ({"network": "svd"}, "network must be one of gmf, mlp, neumf, got 'svd'"),
    ({"layers": (7, 4)}, "the first even"),
    ({"layers": (8,)}, "at least two"),
    ({"factors": 0}, "factors must be 1 to"),
    ({"negatives": 0}, "negatives must be 1 to"),
    ({"dropout": 1.5}, r"dropout must be in \[0, 1\)"),
])
def test_what_is_refused(changes, words):
    with pytest.raises(InvalidArgument, match=words):
        Recommend(DATA, 0, **changes)


def test_too_few_items_to_rank_among():
    with pytest.raises(InvalidArgument, match=r"at least 99 items not rated, .* a user with 10 ratings of \d+ items"):
        Recommend(ratings.load("synthetic:users=30,items=105,each=10"), 0)
