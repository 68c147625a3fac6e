"""Language models on the common loop: windows, states that go on, perplexity, resuming bit for bit."""

import math

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch

from mpicomp.apps import loop, texts
from mpicomp.apps.checkpoints import Keeper
from mpicomp.apps.language import NETWORKS, Language, Transformer
from mpicomp.apps.loop_settings import LoopSettings
from mpicomp.errors import InvalidArgument

TEXT = texts.load("synthetic:tokens=1500,symbols=12,seed=1")
SMALL = {"width": 16, "layers": 2, "bptt": 7}


def model(network="lstm", seed=0, **changes):
    return Language(TEXT, seed, network, **{**SMALL, **changes})


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_are_autograds(network, tied):
    task, rows = model(network, tied=tied), np.arange(5, 9)
    loss, gradients = task.gradients(rows)
    inputs = torch.stack([torch.from_numpy(TEXT.train[7 * row : 7 * row + 7]).long() for row in rows])
    targets = torch.stack([torch.from_numpy(TEXT.train[7 * row + 1 : 7 * row + 8]).long() for row in rows])
    answers, _ = task.network(inputs, task._no_state(4))
    expected = torch.nn.functional.cross_entropy(answers.reshape(-1, 12), targets.reshape(-1))
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    assert set(gradients) == set(task.parameters)
    for name, parameter in task.network.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad.numpy(), rtol=1e-4, atol=1e-6)
        assert task.parameters[name].ctypes.data == parameter.data_ptr()
    assert ("output.weight" in gradients) != tied


def test_the_state_of_the_streams_goes_on():
    """In step 2 the loss is that of the second half of a window twice as long; a step computed twice is the same."""
    rows, task = (len(TEXT.train) - 1) // 7, model()
    streams = task.batches(0, 1, rows, 2, 3, 0)
    first = streams.of(0)
    [task.gradients(one) for one in first]
    second = streams.of(1)
    losses = [task.gradients(one) for one in second]
    for worker, (loss, gradients) in enumerate(losses):
        starts = first[worker] * 7
        inputs = torch.from_numpy(np.stack([TEXT.train[at : at + 14] for at in starts])).long()
        targets = torch.from_numpy(np.stack([TEXT.train[at + 8 : at + 15] for at in starts])).long()
        answers, _ = task.network(inputs, task._no_state(3))
        expected = torch.nn.functional.cross_entropy(answers[:, 7:].reshape(-1, 12), targets.reshape(-1))
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        again, gradients_again = task.gradients(second[worker])
        assert again == loss and all((gradients[name] == gradients_again[name]).all() for name in gradients)


def test_a_transformer_looks_back_only():
    network = Transformer(12, 16, 2, 0.0, True)
    symbols = torch.randint(12, (3, 9))
    other = symbols.clone()
    other[:, 5:] = (other[:, 5:] + 1) % 12
    one, two = (network(x, ())[0] for x in (symbols, other))
    torch.testing.assert_close(one[:, :5], two[:, :5])
    assert not torch.allclose(one[:, 5:], two[:, 5:], atol=1e-3)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("held_out", [2, 9, 150])
def test_perplexity_does_not_depend_on_the_ranks(network, held_out):
    text = TEXT._replace(held_out=TEXT.held_out[:held_out])
    alone = Language(text, 1, network, **SMALL).evaluate()
    for ranks in (2, 5, 20):
        shares = [Language(text, 1, network, rank, ranks, **SMALL).evaluate() for rank in range(ranks)]
        np.testing.assert_allclose(np.sum(shares, axis=0), alone, rtol=1e-6)
    assert alone[2] >= max(1, held_out - 16)
    assert Language.score(alone[0] / alone[2]) == pytest.approx(math.exp(alone[0] / alone[2]))
    assert 6 < Language.score(alone[0] / alone[2]) < 40  # untrained: about one in twelve


def test_dropout_is_by_seed_and_row():
    task, rows = model(dropout=0.5), np.arange(4)
    assert task.gradients(rows)[0] == task.gradients(rows)[0] != task.gradients(rows + task.rows)[0]
    assert task.evaluate() == task.evaluate() == model(dropout=0.5).evaluate()


@pytest.mark.parametrize(("network", "scheme"), [("lstm", "topk:density=0.1"), ("transformer", "dense")])
def test_it_learns(comm, network, scheme):
    settings = LoopSettings(scheme, workers=2, batch=4, epochs=6, lr=0.01, optimizer="adam", clip=1.0)
    report = loop.train(comm, model(network), settings)
    assert report.metric == "perplexity" and report.best < 0.75 * 12


def test_it_learns_by_outer_steps(comm):
    """The loss is that of the common parameters, which the last step has made those of the ranks."""
    settings = LoopSettings(batch=8, epochs=6, lr=0.01, optimizer="adam:decoupled=yes", clip=1.0, outer="diloco",
                            every=5, fragments=2, delay=2, outer_momentum=0.5)
    task = model("transformer")
    report = loop.train(comm, task, settings)
    assert report.best < 0.75 * 12
    loss, _, count = task.evaluate()
    assert report.series[-1].test_loss == pytest.approx(loss / count, rel=1e-6)


@pytest.mark.parametrize("network", NETWORKS)
def test_resumes_bit_for_bit_in_the_middle_of_the_text(comm, tmp_path, network):
    def run(epochs, folder=None, resume=False):
        task = model(network, dropout=0.2)
        keeper = Keeper(comm, folder and str(folder), resume=resume)
        settings = LoopSettings("topk:density=0.1", workers=2, batch=4, epochs=epochs, lr=0.5, clip=0.25, eval_every=5)
        return task.parameters, loop.train(comm, task, settings, keeper=keeper)

    whole, straight = run(1.5)
    run(0.7, tmp_path / "run")
    resumed, report = run(1.5, tmp_path / "run", resume=True)
    assert all((whole[name] == resumed[name]).all() for name in whole)
    assert report.series[-1] == straight.series[-1]


@pytest.mark.parametrize(("changes", "words"), [
    ({"network": "gru"}, "network must be one of lstm, transformer, got 'gru'"),
    ({"width": 0}, "width must be at least 1"),
    ({"bptt": 1500}, "bptt must be less than the 1500 symbols"),
    ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
    ({"network": "transformer", "width": 12}, "multiple of 8, got 12"),
])
def test_what_is_refused(changes, words):
    with pytest.raises(InvalidArgument, match=words):
        model(**changes)
