"""Convolutional networks for 28x28 images by PyTorch, on the common loop: a small CNN and ResNet-8.

The loop's arrays are the network's own memory: NumPy sees parameters and gradients without a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpicomp.errors import InvalidArgument

from .images import CLASSES, Images
from .torch_model import TorchModel, functional, nn, torch

BLOCK = 500  # images evaluated at once
GROUPS = 4


class Block(nn.Module):
    """Two 3x3 convolutions and a short cut.

    He et al. (CVPR 2016) normalise over the batch; here groups of channels are (Wu and He, ECCV 2018), which needs no
    statistics of workers' batches, and gives a virtual worker the gradient it would have on a rank of its own.
    """

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = convolution(inside, out, stride), nn.GroupNorm(GROUPS, out)
        self.conv2, self.norm2 = convolution(out, out), nn.GroupNorm(GROUPS, out)
        self.short = nn.Conv2d(inside, out, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.short(x))


def convolution(inside: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, out, 3, stride, padding=1, bias=False)


def cnn() -> nn.Module:
    """Two 5x5 convolutions with pooling and a hidden layer; 214 000 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, CLASSES),
    )  # fmt: skip


def resnet8() -> nn.Module:
    """Three blocks of 16, 32 and 64 channels: 6n + 2 layers with n = 1; 78 000 parameters."""
    return nn.Sequential(
        convolution(1, 16), nn.GroupNorm(GROUPS, 16), nn.ReLU(), Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip


NETWORKS = {"cnn": cnn, "resnet8": resnet8}


class Vision(TorchModel):
    """The task that ``loop.train`` runs; see there for what each name means.

    Parameters
    ----------
    data : Images
    seed : int
        Of the initial weights.
    network : str
        A name of ``NETWORKS``.
    rank, ranks : int
        Whose share of the test images is evaluated here.
    """

    name = "vision"
    metric, better = "accuracy", "higher"

    def __init__(self, data: Images, seed: int, network: str = "cnn", rank: int = 0, ranks: int = 1) -> None:
        if network not in NETWORKS:
            raise InvalidArgument(f"network must be one of {', '.join(NETWORKS)}, got {network!r}")
        super().__init__(NETWORKS[network], seed)
        self.rows = len(data.train_labels)
        self.fixed = {"network": network, "data": data.facts()}
        mine = slice(rank, None, ranks)
        self._train, self._test = data.train_images, data.test_images[mine]
        self._train_labels, self._test_labels = (torch.from_numpy(one.astype(np.int64))
                                                 for one in (data.train_labels, data.test_labels[mine]))
        self._centre, self._spread = float(data.train_images.mean()), float(data.train_images.std()) or 1.0

    def gradients(self, rows: np.ndarray) -> tuple[float, dict[str, Any]]:
        """Mean cross-entropy of some training rows, and its gradient."""
        loss = functional.cross_entropy(self._answers(self._train[rows]), self._train_labels[rows])
        return self.gradients_of(loss)

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float, int]:
        """Over this rank's share of the test images: sum of the losses, number of right answers, images."""
        loss, right = 0.0, 0
        for start in range(0, len(self._test), BLOCK):
            answers, labels = self._answers(self._test[start : start + BLOCK]), self._test_labels[start : start + BLOCK]
            loss += functional.cross_entropy(answers, labels, reduction="sum").item()
            right += int((answers.argmax(1) == labels).sum())
        return loss, right, len(self._test)

    def _answers(self, images: np.ndarray) -> torch.Tensor:
        """The network's output for grey images, their levels scaled to mean 0 and deviation 1 over the training set."""
        x = torch.from_numpy(images[:, None].astype(np.float32))
        return self.network((x - self._centre) / self._spread)
