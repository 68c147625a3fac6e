"""Images in one folder of JPEG files per class; needs Pillow.

``FOLDER/train/CLASS/*.jpg`` and ``FOLDER/test/CLASS/*.jpg``, or ``FOLDER/CLASS/*.jpg``, of which every sixth image of a
class, by file name, is a test image. Classes are numbered by name. Images of other sizes are scaled to 32 x 32 points.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mpicomp.errors import CorruptFile, InvalidArgument, MissingExtra

from .cifar import SIDE, Arrays

SUFFIXES = (".jpg", ".jpeg")
TEST_FOLDERS = ("test", "val", "valid", "validation")
EVERY = 6  # one in so many images of a class is a test image, as in CIFAR-10


def found(folder: Path) -> bool:
    """Return True if subfolders of a folder, or of its ``train``, hold JPEG files."""
    return bool(_classes(_training(folder)))


def read(folder: Path, most: int) -> Arrays:
    """Images and labels to train on and to test on; images are of shape (n, 3, 32, 32).

    Parameters
    ----------
    folder : Path
    most : int
        Largest number of classes.

    Raises
    ------
    MissingExtra
        There is no Pillow.
    InvalidArgument
        There are too many classes, other ones in ``test``, or too few images.
    CorruptFile
        An image is damaged, or is no JPEG image.
    """
    training = _training(folder)
    classes = _classes(training)
    if len(classes) > most:
        raise InvalidArgument(f"{training} must hold at most {most} folders of JPEG files, one per class, "
                              f"got {len(classes)}: use fewer classes")
    if training == folder:
        train = [[file for i, file in enumerate(files) if (i + 1) % EVERY] for files in classes.values()]
        test = [files[EVERY - 1 :: EVERY] for files in classes.values()]
    else:
        train, test = list(classes.values()), _tests(folder, list(classes))
    if not any(test):
        raise InvalidArgument(f"{folder} must hold test images: in test/, or at least {EVERY} images per class")
    return [*_decoded(train), *_decoded(test)]


def _training(folder: Path) -> Path:
    return folder / "train" if (folder / "train").is_dir() else folder


def _tests(folder: Path, names: list[str]) -> list[list[Path]]:
    """The files of the test images by class; the classes are those of the training images."""
    there = next((folder / name for name in TEST_FOLDERS if (folder / name).is_dir()), None)
    if there is None:
        raise InvalidArgument(f"{folder} has train/ but no test/: give test images of the same classes")
    classes = _classes(there)
    if other := classes.keys() - set(names):
        raise InvalidArgument(f"{there} has classes that {folder / 'train'} lacks: {', '.join(sorted(other))}")
    return [classes.get(name, []) for name in names]


def _classes(folder: Path) -> dict[str, list[Path]]:
    """JPEG files by the name of their folder, both sorted."""
    if not folder.is_dir():
        return {}
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    files = {path.name: sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES) for path in inner}
    return {name: some for name, some in files.items() if some}


def _decoded(classes: list[list[Path]]) -> Arrays:
    """Images of all classes, and their labels."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("JPEG images need Pillow: pip install 'mpicomp[data]'") from error
    labels = np.repeat(np.arange(len(classes), dtype=np.uint8), [len(files) for files in classes])
    images = np.empty((len(labels), 3, SIDE, SIDE), np.uint8)
    for out, file in zip(images, (file for files in classes for file in files), strict=True):
        try:
            with Image.open(file, formats=["JPEG"]) as image:
                points = image.convert("RGB")
                out[...] = np.asarray(points if points.size == (SIDE, SIDE) else points.resize((SIDE, SIDE))
                                      ).transpose(2, 0, 1)  # fmt: skip
        except Exception as error:  # Pillow raises whatever its parsers run into
            raise CorruptFile(f"{file} is no JPEG image or is damaged: {error}") from None
    return [images, labels]
