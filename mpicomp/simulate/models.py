"""Models as the simulation needs them: the shape of every array of parameters, and the work of a step.

FLOPs are of the forward pass of one sample (an image, a sentence of 64 words, a sequence of 35 words), a
multiply-add counted as two; a training step counts three times as many: forward, and backward for inputs and weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any

from ..errors import InvalidArgument

PASSES = 3  # of the forward pass' FLOPs in a training step
Layer = tuple[str, tuple[int, ...], float]  # name, shape, FLOPs of a sample's forward pass


@dataclass(frozen=True)
class Model:
    """A model's arrays, in order."""

    name: str
    layers: tuple[Layer, ...]

    @cached_property
    def n(self) -> int:
        """Elements of all arrays together."""
        return sum(math.prod(shape) for _, shape, _ in self.layers)

    @property
    def flops(self) -> float:
        """FLOPs of the forward pass of one sample; 0 if not known."""
        return sum(flops for _, _, flops in self.layers)

    @cached_property
    def tensors(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Begin and end of each array in the flat vector, and its shape."""
        found, at = [], 0
        for _, shape, _ in self.layers:
            found.append((at, at + math.prod(shape), shape))
            at += math.prod(shape)
        return found

    def padded(self, size: int, most: float) -> Model:
        """The model with a few more elements, up to the fraction ``most``, so that ``size`` blocks are equally long."""
        missing = -self.n % size
        if not 0 < missing <= most * self.n:
            return self
        *others, last = self.layers  # which stays the last, as a scheme may treat that in its own way
        return Model(self.name, (*others, ("padding", (missing,), 0.0), last))

    def compute_time(self, batch: int, flops_per_second: float) -> float:
        """Seconds of a training step of ``batch`` samples per rank."""
        if not self.flops:
            raise InvalidArgument(f"the FLOPs of {self.name} are not known: give --compute-time")
        return PASSES * batch * self.flops / flops_per_second


# ---- the built-in ones

def conv(name: str, inputs: int, outputs: int, kernel: int, pixels: int, groups: int = 1) -> Iterator[Layer]:
    """A convolution without bias and its batch normalisation; ``pixels`` of the output image's side."""
    shape = (outputs, inputs // groups, kernel, kernel)
    yield f"{name}.weight", shape, 2.0 * math.prod(shape) * pixels * pixels
    yield from norm(f"{name}.norm", outputs)


def dense(name: str, inputs: int, outputs: int, times: int = 1) -> Iterator[Layer]:
    """A matrix applied ``times`` times a sample."""
    yield f"{name}.weight", (outputs, inputs), 2.0 * inputs * outputs * times
    yield f"{name}.bias", (outputs,), 0.0


def resnet(blocks: tuple[int, ...], bottleneck: bool) -> Iterator[Layer]:
    """He et al. 2016, for ImageNet."""
    yield from conv("stem", 3, 64, 7, 112)
    inputs, growth = 64, 4 if bottleneck else 1
    for stage, count in enumerate(blocks):
        width, pixels = 64 << stage, 56 >> stage
        for block in range(count):
            name, before = f"stage{stage}.{block}", pixels * (2 if stage and not block else 1)
            if bottleneck:
                yield from conv(f"{name}.a", inputs, width, 1, before)
                yield from conv(f"{name}.b", width, width, 3, pixels)
                yield from conv(f"{name}.c", width, 4 * width, 1, pixels)
            else:
                yield from conv(f"{name}.a", inputs, width, 3, pixels)
                yield from conv(f"{name}.b", width, width, 3, pixels)
            if not block and inputs != growth * width:
                yield from conv(f"{name}.short", inputs, growth * width, 1, pixels)
            inputs = growth * width
    yield from dense("classes", inputs, 1000)


def mobilenetv2() -> Iterator[Layer]:
    """Sandler et al. 2018, for ImageNet."""
    yield from conv("stem", 3, 32, 3, 112)
    inputs, pixels = 32, 112
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for stage, (expand, outputs, count, stride) in enumerate(table):
        for block in range(count):
            name, hidden, before = f"stage{stage}.{block}", inputs * expand, pixels
            pixels //= stride if not block else 1
            if expand > 1:
                yield from conv(f"{name}.expand", inputs, hidden, 1, before)
            yield from conv(f"{name}.depthwise", hidden, hidden, 3, pixels, groups=hidden)
            yield from conv(f"{name}.project", hidden, outputs, 1, pixels)
            inputs = outputs
    yield from conv("head", inputs, 1280, 1, 7)
    yield from dense("classes", 1280, 1000)


def lstm(vocabulary: int = 10_000, hidden: int = 1500, layers: int = 2, words: int = 35) -> Iterator[Layer]:
    """The large model of Zaremba et al. 2014 on the Penn Treebank, as in Deep Gradient Compression."""
    yield "embedding.weight", (vocabulary, hidden), 0.0
    for layer in range(layers):
        for side in ("input", "hidden"):
            yield from dense(f"lstm{layer}.{side}", hidden, 4 * hidden, words)
    yield from dense("words", hidden, vocabulary, words)


def transformer(vocabulary: int = 37_000, width: int = 512, layers: int = 6, words: int = 64) -> Iterator[Layer]:
    """Vaswani et al. 2017, base; embeddings of both languages and the last matrix are one."""
    yield "embedding.weight", (vocabulary, width), 2.0 * vocabulary * width * words
    for side, attentions in (("encoder", 1), ("decoder", 2)):
        for layer in range(layers):
            for attention in range(attentions):
                name = f"{side}{layer}.attention{attention}"
                for part in ("query", "key", "value", "out"):
                    yield from dense(f"{name}.{part}", width, width, words)
                yield from norm(f"{name}.norm", width)
            yield from dense(f"{side}{layer}.up", width, 4 * width, words)
            yield from dense(f"{side}{layer}.down", 4 * width, width, words)
            yield from norm(f"{side}{layer}.norm", width)


def norm(name: str, width: int) -> Iterator[Layer]:
    yield f"{name}.weight", (width,), 0.0
    yield f"{name}.bias", (width,), 0.0


BUILT_IN: dict[str, Callable[[], Iterator[Layer]]] = {
    "resnet18": lambda: resnet((2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda: resnet((3, 4, 6, 3), bottleneck=True),
    "mobilenetv2": mobilenetv2,
    "lstm-66m": lstm,
    "transformer-base": transformer,
}


def named(text: str) -> Model | None:
    """A built-in model, or one vector of so many elements (``25M``, ``1e6``); None for anything else."""
    if text in BUILT_IN:
        return Model(text, tuple(BUILT_IN[text]()))
    scale = {"K": 1e3, "M": 1e6, "G": 1e9}.get(text[-1:].upper(), 1.0)
    try:
        n = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        return None
    if not (1 <= n < 2**53 and n == int(n)):
        raise InvalidArgument(f"a number of elements must be whole and from 1 to 2^53 - 1, got {text!r}")
    return Model(text, (("vector", (int(n),), 0.0),))


def from_document(document: Any, source: str) -> Model:
    """A model out of a file: ``layers``, a list of tables with ``name``, ``shape`` and, if known, ``flops``."""
    try:
        layers = tuple((str(one["name"]), tuple(map(index, one["shape"])), float(one.get("flops", 0.0)))
                       for one in document["layers"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidArgument(
            f"{source} is no model ({type(error).__name__}: {error}): it needs layers, each with name, shape and, if "
            "known, flops (of a sample's forward pass)"
        ) from error
    if not layers or any(side < 1 for _, shape, _ in layers for side in shape):
        raise InvalidArgument(f"{source}: expected layers with sides of at least 1, got {[one[1] for one in layers]}")
    if not all(0 <= flops < math.inf for *_, flops in layers):
        raise InvalidArgument(f"{source}: flops must be finite numbers from 0, got {[one[2] for one in layers]}")
    return Model(str(document.get("name", source)), layers)
