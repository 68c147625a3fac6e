"""Labelled images by name: MNIST, Fashion-MNIST, CIFAR-10, folders of JPEG files, and a generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from mpicomp.errors import CorruptFile, InvalidArgument

from . import cifar, class_folders, compressed_files, generator_options, idx
from .data import read_once

CLASSES = 10
SIDE = 28
IDX = tuple(f"{begin}-{kind}" for begin in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
FORMS = (f"a folder with {', '.join(IDX)} (.gz or not), with CIFAR-10's binary version (data_batch_1.bin to "
         "test_batch.bin), or with a folder of JPEG files per class (in train/ and test/, or without them); an .npz "
         "archive of JPEG images; or synthetic:train=2000,test=500,seed=1,channels=3 to go without")
# Images for training and testing, by the name of the folder.
OFFICIAL = {"mnist": (60_000, 10_000), "fashion-mnist": (60_000, 10_000), "cifar-10-batches-bin": (50_000, 10_000)}
_DEFAULTS = {"train": 2000, "test": 500, "seed": 0, "channels": 1}
_NOISE = 60.0  # grey levels; a linear model is right in about nine of ten images then


class Images(NamedTuple):
    """Images as unsigned bytes, grey (n, 28, 28) or in colour (n, 3, 32, 32), and their classes, 0 to 9."""

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        shape = self.train_images.shape[1:]
        return shape if len(shape) == 3 else (1, *shape)

    def facts(self) -> dict[str, Any]:
        """Facts that distinguish this data from other data."""
        crc = 0
        for part in self[1:]:
            crc = crc32(np.ascontiguousarray(part).data, crc)
        return {"name": self.name, "rows": len(self.train_labels), "test": len(self.test_labels), "crc32": crc}


def load(source: str) -> Images:
    """Read or make what ``source`` names.

    Parameters
    ----------
    source : str
        A folder with the four IDX files of MNIST or Fashion-MNIST, or with the six of CIFAR-10's binary version; an
        ``.npz`` archive of JPEG images, see ``cifar``; a folder of one folder of JPEG files per class, see
        ``class_folders``; or ``synthetic:train=2000,test=500,seed=0,channels=1``.

    Raises
    ------
    CorruptFile, InvalidArgument, MissingExtra
        Naming the file, the expected content and the one found.
    """
    if source.partition(":")[0] == "synthetic":
        return generate(source)
    path = Path(source)
    shape: tuple[int, ...] = (3, cifar.SIDE, cifar.SIDE)
    if path.is_file() and path.suffix == ".npz":
        parts = cifar.read_archive(path)
    elif compressed_files.find(path, (*cifar.TRAIN, *cifar.TEST, cifar.PICKLED)):
        parts = cifar.read_folder(path)
    elif compressed_files.find(path, IDX):
        parts, shape = [idx.read(path, name, 3 if "idx3" in name else 1) for name in IDX], (SIDE, SIDE)
    elif class_folders.found(path):
        parts = class_folders.read(path, CLASSES)
    else:
        raise InvalidArgument(f"no images in {path}: expected {FORMS}")
    data = Images(path.resolve().name, *parts)
    check(data, source, shape)
    return data


def share(comm: Any, source: str) -> Images:
    """The data on every rank, read by rank 0 alone (collective).

    Raises
    ------
    The error of ``load``, on every rank.
    """
    return read_once(comm, lambda: load(source))


def check(data: Images, source: str, shape: tuple[int, ...] = (SIDE, SIDE)) -> None:
    """Refuse files that do not belong together or are not these data sets; ``shape`` is that of an image."""
    for begin, images, labels in (("training", *data[1:3]), ("test", *data[3:5])):
        if images.shape != (len(labels), *shape) or not len(labels):
            raise CorruptFile(f"{source}: expected as many {begin} images of {'x'.join(map(str, shape))} as labels, "
                              f"got {images.shape} and {len(labels)}")
        if labels.max() >= CLASSES:
            raise CorruptFile(f"{source}: {begin} labels must be 0 to {CLASSES - 1}, got {labels.max()}")
    sizes = len(data.train_labels), len(data.test_labels)
    official = OFFICIAL.get(data.name, sizes)
    if sizes != official:
        raise CorruptFile(f"{source} must hold {official[0]} + {official[1]} images, got {sizes[0]} + {sizes[1]}: "
                          "download it again, or rename the folder if it is other data")


def generate(source: str) -> Images:
    """Ten smooth random pictures, and noise: ``train=2000,test=500,seed=1``; equal text, equal data."""
    options = generator_options.options(source, _DEFAULTS)
    rng, channels = np.random.default_rng(options["seed"]), options["channels"]
    if channels not in (1, 3):
        raise InvalidArgument(f"synthetic images have 1 or 3 channels, got {channels}")
    pictures = np.kron(rng.uniform(0, 255, (CLASSES, 7, 7)), np.ones((4, 4)))
    if channels == 3:
        pictures = np.kron(rng.uniform(0, 255, (CLASSES, 3, 8, 8)), np.ones((4, 4)))

    def drawn(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(CLASSES, size=n).astype(np.uint8)
        images = 0.4 * pictures[labels] + rng.normal(75, _NOISE, (n, *pictures.shape[1:]))
        return images.clip(0, 255).astype(np.uint8), labels

    return Images(source, *drawn(options["train"]), *drawn(options["test"]))
