"""Labelled images by name: folders of IDX files (MNIST, Fashion-MNIST), and a generator, all with the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from mpicomp.errors import CorruptFile, InvalidArgument

from . import idx
from .data import read_once

CLASSES = 10
SIDE = 28
OFFICIAL = (60_000, 10_000)  # images for training and testing in MNIST and Fashion-MNIST
_DEFAULTS = {"train": 2000, "test": 500, "seed": 0}
_NOISE = 60.0  # grey levels; a linear model is right in about nine of ten images then


class Images(NamedTuple):
    """Grey images as unsigned bytes, shape (n, 28, 28), and their classes, 0 to 9."""

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    def facts(self) -> dict[str, Any]:
        """What tells this data from other data."""
        crc = 0
        for part in self[1:]:
            crc = crc32(np.ascontiguousarray(part), crc)
        return {"name": self.name, "rows": len(self.train_labels), "test": len(self.test_labels), "crc32": crc}


def load(source: str) -> Images:
    """Read or make what ``source`` names: a folder with the four official files, or ``synthetic:train=2000,test=500``.

    Raises
    ------
    CorruptFile, InvalidArgument
        Naming the file, what was expected and what was got.
    """
    kind, _, options = source.partition(":")
    if kind == "synthetic":
        return generate(source, options)
    folder = Path(source)
    parts = []
    for begin in ("train", "t10k"):
        images = idx.read(folder, f"{begin}-images-idx3-ubyte", 3)
        labels = idx.read(folder, f"{begin}-labels-idx1-ubyte", 1)
        parts += [images, labels]
    data = Images(folder.resolve().name, *parts)
    check(data, source)
    return data


def share(comm: Any, source: str) -> Images:
    """The data on every rank, read by rank 0 alone (collective).

    Raises
    ------
    The error of ``load``, on every rank.
    """
    return read_once(comm, lambda: load(source))


def check(data: Images, source: str) -> None:
    """Refuse files that do not belong together or are not these data sets."""
    for begin, images, labels in (("train", *data[1:3]), ("t10k", *data[3:5])):
        if images.shape != (len(labels), SIDE, SIDE) or not len(labels):
            raise CorruptFile(f"{source}: {begin} must have as many images of {SIDE}x{SIDE} as labels, "
                              f"got {images.shape} and {len(labels)}")
        if labels.max() >= CLASSES:
            raise CorruptFile(f"{source}: {begin} labels must be 0 to {CLASSES - 1}, got {labels.max()}")
    sizes = len(data.train_labels), len(data.test_labels)
    if data.name in ("mnist", "fashion-mnist") and sizes != OFFICIAL:
        raise CorruptFile(f"{source} must hold {OFFICIAL[0]} + {OFFICIAL[1]} images, got {sizes[0]} + {sizes[1]}: "
                          "download it again, or rename the folder if it is other data")


def generate(name: str, text: str) -> Images:
    """Ten smooth random pictures, and noise: ``train=2000,test=500,seed=1``; equal text, equal data."""
    options = dict(_DEFAULTS)
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in options or not value.isdecimal() or (key != "seed" and int(value) < 1):
            raise InvalidArgument(f"expected synthetic:train=2000,test=500,seed=1 (whole numbers), got {item!r}")
        options[key] = int(value)
    rng = np.random.default_rng(options["seed"])
    pictures = np.kron(rng.uniform(0, 255, (CLASSES, 7, 7)), np.ones((4, 4)))

    def drawn(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(CLASSES, size=n).astype(np.uint8)
        images = 0.4 * pictures[labels] + rng.normal(75, _NOISE, (n, SIDE, SIDE))
        return images.clip(0, 255).astype(np.uint8), labels

    return Images(name, *drawn(options["train"]), *drawn(options["test"]))
