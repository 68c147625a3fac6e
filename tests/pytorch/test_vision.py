"""The networks on the common loop: PyTorch's gradients in NumPy's hands, learning, resuming bit for bit."""

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch

from mpicomp.apps import images, loop
from mpicomp.apps.checkpoints import Keeper
from mpicomp.apps.loop_settings import LoopSettings
from mpicomp.apps.vision import NETWORKS, Vision, shifted
from mpicomp.errors import InvalidArgument

DATA = images.load("synthetic:train=120,test=60,seed=1")
COLOUR = images.load("synthetic:train=60,test=40,seed=1,channels=3")
SMALL = ("cnn", "resnet8")


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_and_parameters_are_the_networks_own(network):
    task = Vision(DATA, 3, network)
    rows = np.arange(20 if network in SMALL else 2)
    _, gradients = task.gradients(rows)
    x = torch.from_numpy(DATA.train_images[rows, None].astype(np.float32))
    x = (x - DATA.train_images.mean()) / DATA.train_images.std()
    loss = torch.nn.functional.cross_entropy(task.network(x.float()), torch.from_numpy(DATA.train_labels[rows]).long())
    loss.backward()
    for name, parameter in task.network.named_parameters():
        np.testing.assert_allclose(gradients[name], parameter.grad.numpy(), rtol=1e-3, atol=1e-5)
        assert gradients[name].flags.c_contiguous
        assert task.parameters[name].ctypes.data == parameter.data_ptr()
    again = Vision(DATA, 3, network)
    assert all((task.parameters[name] == again.parameters[name]).all() for name in task.parameters)


@pytest.mark.parametrize("network", SMALL)
def test_descends(network):
    """By its gradients, written into the loop's arrays."""
    task, rows, losses = Vision(DATA, 0, network), np.arange(16), []
    for _ in range(25):
        loss, gradients = task.gradients(rows)
        losses.append(loss)
        for name, gradient in gradients.items():
            task.parameters[name] -= 0.1 * gradient
    assert losses[-1] < 0.9 * losses[0]


def test_it_learns(comm):
    report = loop.train(comm, Vision(DATA, 0), LoopSettings("topk:density=0.1", workers=2, batch=10, epochs=4, lr=0.03))
    assert report.series[-1].train_loss < 0.8 * report.series[0].train_loss
    assert report.series[-1].metric > 0.2  # by chance: 0.1


def test_resumes_bit_for_bit(comm, tmp_path):
    def run(epochs, folder=None, resume=False):
        task = Vision(DATA, 0, "cnn")
        keeper = Keeper(comm, folder and str(folder), resume=resume)
        loop.train(comm, task, LoopSettings("topk:density=0.1", workers=2, batch=10, epochs=epochs), keeper=keeper)
        return task.parameters

    whole = run(2)
    run(1, tmp_path / "run")
    resumed = run(2, tmp_path / "run", resume=True)
    assert all((whole[name] == resumed[name]).all() for name in whole)


def test_a_wrong_name():
    with pytest.raises(InvalidArgument, match="network must be one of cnn, resnet8, resnet18, got 'vgg'"):
        Vision(DATA, 0, "vgg")


def test_sizes_are_the_published_ones():
    """ResNet-18 for CIFAR-10 as in the total-error paper; the others as --help says."""
    sizes = {name: sum(p.size for p in Vision(COLOUR, 0, name).parameters.values()) for name in NETWORKS}
    assert sizes["resnet18"] == 11_173_962
    grey = {name: sum(p.size for p in Vision(DATA, 0, name).parameters.values()) for name in SMALL}
    assert grey["cnn"] // 1000 == 215 and round(grey["resnet8"] / 1000) == 78 and sizes["cnn"] > grey["cnn"]


def test_colours_are_scaled_each_for_itself():
    task, expected = Vision(COLOUR, 0, "resnet8", augment=False), COLOUR.train_images.astype(np.float64)
    task.network = lambda x: x
    scaled = task._answers(COLOUR.train_images).numpy()
    means, deviations = expected.mean(axis=(0, 2, 3)), expected.std(axis=(0, 2, 3))
    np.testing.assert_allclose(scaled, (expected - means[:, None, None]) / deviations[:, None, None], atol=1e-5)


def test_shifts_and_mirrors(seed):
    """Against each image cut and turned by itself, for all that could have been drawn; as likely one as another."""
    pictures = np.random.default_rng(seed).integers(1, 256, (1, 3, 6, 7)).astype(np.uint8)
    padded = np.pad(pictures[0], ((0, 0), (4, 4), (4, 4)))
    possible = {}
    for down in range(9):
        for right in range(9):
            cut = padded[:, down : down + 6, right : right + 7]
            possible[cut.tobytes()] = possible[cut[:, :, ::-1].tobytes()] = (down, right)
    draws = np.arange(8000)
    found = shifted(np.repeat(pictures, 8000, axis=0), draws, seed)
    assert found.shape == (8000, 3, 6, 7) and found.dtype == np.uint8
    counts = dict.fromkeys(possible, 0)
    for one in found:
        counts[one.tobytes()] += 1
    assert len(counts) == 162 and min(counts.values()) > 10  # 49 each
    some = np.array([7, 4321, 99])
    assert np.array_equal(shifted(np.repeat(pictures, 3, axis=0), some, seed), found[some])
    assert not np.array_equal(shifted(np.repeat(pictures, 8000, axis=0), draws, seed + 1), found)


def test_what_is_drawn_follows_from_epoch_and_row(comm):
    task, plain = Vision(COLOUR, 0, "cnn"), Vision(COLOUR, 0, "cnn", augment=False)
    rows = np.arange(9)
    assert task.fixed["augment"] and not plain.fixed["augment"] and not Vision(DATA, 0).fixed["augment"]
    assert task.gradients(rows)[0] == task.gradients(rows)[0] != task.gradients(rows + task.rows)[0]
    assert plain.gradients(rows)[0] == plain.gradients(rows + plain.rows)[0] != task.gradients(rows)[0]
    assert task.evaluate() == plain.evaluate()
    report = loop.train(comm, task, LoopSettings("topk:density=0.1", workers=2, batch=10, epochs=2, lr=0.02))
    assert report.facts["data"]["rows"] == 60 and np.isfinite(report.series[-1].train_loss)
