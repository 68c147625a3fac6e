"""The networks on the common loop: PyTorch's gradients in NumPy's hands, learning, resuming bit for bit."""

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch

from mpicomp.apps import images, loop
from mpicomp.apps.keeper import Keeper
from mpicomp.apps.loop_settings import LoopSettings
from mpicomp.apps.vision import NETWORKS, Vision
from mpicomp.errors import InvalidArgument

DATA = images.load("synthetic:train=120,test=60,seed=1")


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_and_parameters_are_the_networks_own(network):
    task = Vision(DATA, 3, network)
    rows = np.arange(20)
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


@pytest.mark.parametrize("network", NETWORKS)
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
    with pytest.raises(InvalidArgument, match="network must be one of cnn, resnet8, got 'vgg'"):
        Vision(DATA, 0, "vgg")
