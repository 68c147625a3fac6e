"""A multi-layer perceptron for images, by default 784-256-128-10, with softmax cross-entropy, on NumPy or CuPy arrays.

The forward and backward pass are written out: no framework is needed.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from mpicomp.errors import InvalidArgument
from mpicomp.ops import ops_for

from .images import CLASSES, Images

HIDDEN = (256, 128)
BLOCK = 2000  # images evaluated at once

Array = Any


class MLP:
    """The task that ``loop.train`` runs; see there for what each name means.

    Parameters
    ----------
    data : Images
    seed : int
        Of the initial weights: normal with variance 2/inputs (He et al., ICCV 2015), biases zero.
    hidden : sequence of int
        Neurons of the hidden layers.
    rank, ranks : int
        Whose share of the test images is evaluated here.
    on_device : callable
        Moves a NumPy array to where the computation happens.
    """

    name = "mlp"
    metric, better = "accuracy", "higher"

    def __init__(self, data: Images, seed: int, rank: int = 0, ranks: int = 1, hidden: tuple[int, ...] = HIDDEN,
                 on_device: Any = lambda array: array) -> None:
        if not hidden or min(hidden) < 1:
            raise InvalidArgument(f"hidden layers must have at least 1 neuron each, got {hidden}")
        self.layers = (math.prod(data.shape), *hidden, CLASSES)
        self.rows = len(data.train_labels)
        self.fixed = {"layers": list(self.layers), "data": data.facts()}
        rng = np.random.default_rng([seed, 1 << 31])
        self.parameters: dict[str, Array] = {}
        for number, (inputs, outputs) in enumerate(pairwise(self.layers), 1):
            weight = rng.standard_normal((inputs, outputs)) * (2 / inputs) ** 0.5
            self.parameters[f"weight{number}"] = on_device(weight.astype(np.float32))
            self.parameters[f"bias{number}"] = on_device(np.zeros(outputs, np.float32))
        mine = slice(rank, None, ranks)
        flat = [images.reshape(len(images), self.layers[0]) for images in (data.train_images, data.test_images[mine])]
        self._train, self._test = (on_device(one) for one in flat)
        self._train_labels, self._test_labels = data.train_labels, data.test_labels[mine]
        self._on_device = on_device
        self._centre, self._spread = _moments(data.train_images)

    def gradients(self, rows: np.ndarray) -> tuple[float, dict[str, Array]]:
        """Mean cross-entropy of some training rows, and its gradient."""
        x = self._scaled(self._train[self._on_device(rows)])
        hot = np.zeros((rows.size, CLASSES), np.float32)
        hot[np.arange(rows.size), self._train_labels[rows]] = 1
        hot = self._on_device(hot)
        activations = self._forward(x)
        share = _softmax(activations[-1])
        loss = -float(np.log(np.maximum((share * hot).sum(axis=1), np.float32(1e-30))).mean())
        return loss, self._backward(activations, (share - hot) / np.float32(rows.size))

    def _scaled(self, images: Array) -> Array:
        """Grey levels with the training images' mean 0 and deviation 1."""
        return (images.astype(np.float32) - self._centre) / self._spread

    def _forward(self, x: Array) -> list[Array]:
        """The input of each layer, and the last one's output."""
        activations = [x]
        for number in range(1, len(self.layers)):
            z = activations[-1] @ self.parameters[f"weight{number}"] + self.parameters[f"bias{number}"]
            activations.append(np.maximum(z, np.float32(0)) if number < len(self.layers) - 1 else z)
        return activations

    def _backward(self, activations: list[Array], slope: Array) -> dict[str, Array]:
        """Gradients of all parameters, where ``slope`` is that of the last layer's output."""
        found: dict[str, Array] = {}
        for number in range(len(self.layers) - 1, 0, -1):
            below = activations[number - 1]
            found[f"weight{number}"], found[f"bias{number}"] = below.T @ slope, slope.sum(axis=0)
            if number > 1:
                slope = (slope @ self.parameters[f"weight{number}"].T) * (below > 0)
        return {name: found[name] for name in self.parameters}

    def evaluate(self) -> tuple[float, float, int]:
        """Over this rank's share of the test images: sum of the losses, number of right answers, images."""
        loss = right = 0.0
        for start in range(0, len(self._test_labels), BLOCK):
            x = self._scaled(self._test[start : start + BLOCK])
            share = _softmax(self._forward(x)[-1])
            share = np.asarray(ops_for(share).to_host(share))
            labels = self._test_labels[start : start + BLOCK]
            loss -= float(np.log(np.maximum(share[np.arange(labels.size), labels], 1e-30)).sum())
            right += int((share.argmax(axis=1) == labels).sum())
        return loss, right, len(self._test_labels)


def _moments(images: np.ndarray) -> tuple[np.float32, np.float32]:
    """Mean and standard deviation, exact in integers: by the number of pixels of each grey level."""
    counts, levels = np.bincount(images.reshape(-1), minlength=256), np.arange(256)
    mean = (counts * levels).sum() / images.size
    spread = ((counts * levels**2).sum() / images.size - mean**2) ** 0.5
    return np.float32(mean), np.float32(spread or 1)


def _softmax(z: Array) -> Array:
    powers = np.exp(z - z.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
