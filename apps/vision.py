"""Convolutional networks for small images by PyTorch, on the common loop: a small CNN, ResNet-8 and ResNet-18.

The loop's arrays are the network's own memory: NumPy sees parameters and gradients without a copy.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from mpicomp.errors import InvalidArgument

from .batches import Draws, mixed
from .images import CLASSES, Images
from .torch_model import TorchModel, functional, nn, torch

BLOCK = 500  # images evaluated at once
GROUPS = 4  # of the channels of the small networks
MARGIN = 4  # black points around an image, before a piece of its size is cut out

Shape = tuple[int, int, int]  # channels, height and width of an image


class Block(nn.Module):
    """Two 3x3 convolutions and a short cut.

    He et al. (CVPR 2016) normalise over the batch; here groups of channels are (Wu and He, ECCV 2018), which needs no
    statistics of workers' batches, and gives a virtual worker the gradient it would have on a rank of its own.
    """

    def __init__(self, inside: int, out: int, stride: int, groups: int = GROUPS, norm_short: bool = False) -> None:
        super().__init__()
        self.conv1, self.norm1 = convolution(inside, out, stride), nn.GroupNorm(groups, out)
        self.conv2, self.norm2 = convolution(out, out), nn.GroupNorm(groups, out)
        self.short: nn.Module = nn.Conv2d(inside, out, 1, stride, bias=False) if stride > 1 else nn.Identity()
        if norm_short and stride > 1:
            self.short = nn.Sequential(self.short, nn.GroupNorm(groups, out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.short(x))


def convolution(inside: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, out, 3, stride, padding=1, bias=False)


def cnn(shape: Shape) -> nn.Module:
    """Two 5x5 convolutions with pooling and a hidden layer; 215 000 parameters for grey images."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), 128), nn.ReLU(),
        nn.Linear(128, CLASSES),
    )  # fmt: skip


def resnet8(shape: Shape) -> nn.Module:
    """Three blocks of 16, 32 and 64 channels: 6n + 2 layers with n = 1; 78 000 parameters."""
    return nn.Sequential(
        convolution(shape[0], 16), nn.GroupNorm(GROUPS, 16), nn.ReLU(), Block(16, 16, 1), Block(16, 32, 2),
        Block(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip


def resnet18(shape: Shape) -> nn.Module:
    """Eight blocks of 64 to 512 channels behind a 3x3 convolution, as is usual for CIFAR-10; 11 173 962 parameters."""
    widths, groups = (64, 64, 128, 128, 256, 256, 512, 512), 32
    blocks = [Block(inside, out, 1 + (out > inside), groups, norm_short=True) for inside, out in
              pairwise((64, *widths))]  # fmt: skip
    return nn.Sequential(
        convolution(shape[0], 64), nn.GroupNorm(groups, 64), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(512, CLASSES),
    )  # fmt: skip


NETWORKS = {"cnn": cnn, "resnet8": resnet8, "resnet18": resnet18}


class Vision(TorchModel):
    """The task that ``loop.train`` runs; see there for what each name means.

    Parameters
    ----------
    data : Images
    seed : int
        Of the initial weights and of what changes images.
    network : str
        A name of ``NETWORKS``.
    rank, ranks : int
        Whose share of the test images is evaluated here.
    augment : bool, optional
        Shift and mirror training images at random, anew every epoch. Default: those in colour.
    """

    name = "vision"
    metric, better = "accuracy", "higher"
    batches = Draws

    def __init__(self, data: Images, seed: int, network: str = "cnn", rank: int = 0, ranks: int = 1,
                 augment: bool | None = None) -> None:  # fmt: skip
        if network not in NETWORKS:
            raise InvalidArgument(f"network must be one of {', '.join(NETWORKS)}, got {network!r}")
        super().__init__(lambda: NETWORKS[network](data.shape), seed)
        self.rows = len(data.train_labels)
        self._seed, self._augment = seed, data.shape[0] > 1 if augment is None else augment
        self.fixed = {"network": network, "augment": self._augment, "data": data.facts()}
        self._train, test = (one.reshape(-1, *data.shape) for one in (data.train_images, data.test_images))
        self._test = test[rank::ranks]
        self._train_labels, self._test_labels = (torch.from_numpy(one.astype(np.int64))
                                                 for one in (data.train_labels, data.test_labels[rank::ranks]))
        self._centre, self._spread = moments(self._train)

    def gradients(self, rows: np.ndarray) -> tuple[float, dict[str, Any]]:
        """Mean cross-entropy of some training rows, and its gradient."""
        places = rows % self.rows
        images = self._train[places]
        if self._augment:
            images = shifted(images, rows, self._seed)
        loss = functional.cross_entropy(self._answers(images), self._train_labels[places])
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
        """The network's output for images, each channel scaled to mean 0 and deviation 1 over the training set."""
        scaled = (torch.from_numpy(images.astype(np.float32)) - self._centre) / self._spread
        return self.network(scaled)


def moments(images: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each channel, to be broadcast over images."""
    channels = [images[:, channel] for channel in range(images.shape[1])]
    means, deviations = ([float(find(one)) for one in channels] for find in (np.mean, np.std))
    spread = [one or 1.0 for one in deviations]
    return torch.tensor(means)[:, None, None], torch.tensor(spread)[:, None, None]


def shifted(images: np.ndarray, draws: np.ndarray, seed: int) -> np.ndarray:
    """Each image moved by up to four points, black beyond its edge, and mirrored in half of the cases.

    How follows from seed and draw (epoch and row) alone, so it does not depend on the number of ranks. Reference: He
    et al., Deep residual learning for image recognition, CVPR 2016, section 4.2.
    """
    steps = 2 * MARGIN + 1
    words = mixed(draws.astype(np.uint64), seed)
    downs, words = (words % np.uint64(steps)).astype(int), words // np.uint64(steps)
    rights, words = (words % np.uint64(steps)).astype(int), words // np.uint64(steps)
    padded = np.pad(images, ((0, 0), (0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)))
    height, width = images.shape[2:]
    every = np.arange(len(images))[:, None, None]
    columns = rights[:, None] + np.arange(width)
    columns = np.where((words % np.uint64(2) == 0)[:, None], columns, columns[:, ::-1])
    cut = padded[every, :, (downs[:, None] + np.arange(height))[:, :, None], columns[:, None, :]]
    return np.ascontiguousarray(cut.transpose(0, 3, 1, 2))
