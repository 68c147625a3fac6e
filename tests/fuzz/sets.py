"""The readers of texts, ratings and images in colour."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from mpicomp.apps import cifar, images, ratings, texts

Read = Callable[[bytes], None]
FORMS = {"u.data": (b"", b"\t"), "ratings.dat": (b"", b"::"), "ratings.csv": (ratings.HEADER + b"\n", b",")}


def text(pack: Callable[[bytes], bytes], level: str, folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    """The training text of three; bent before compressing, or after."""
    words = "\n".join(" ".join(rng.choice(["a", "bär", "<unk>", "@-@", "the"], 6)) for _ in range(20)).encode()
    inside = rng.random() < 0.3
    for split in ("valid", "test"):
        (folder / f"{split}.txt").write_bytes(b"the a\n")

    def read(content: bytes) -> None:
        (folder / "train.txt").write_bytes(pack(content) if inside else content)
        loaded = texts.load(str(folder), level)
        assert loaded.train.min() >= 0 and max(loaded.train.max(), loaded.held_out.max()) < loaded.symbols

    return words if inside else pack(words), read


def rated(name: str, folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    header, separator = FORMS[name]
    rows = [[*rng.integers(1, 9, 2), rng.integers(1, 6), rng.integers(1 << 30)] for _ in range(40)]
    lines = [separator.join(str(one).encode() for one in row) for row in rows]

    def read(content: bytes) -> None:
        (folder / name).write_bytes(content)
        loaded = ratings.load(str(folder / name))
        for users, items in ((loaded.train_users, loaded.train_items), (loaded.test_users, loaded.test_items)):
            assert users.shape == items.shape and (users < loaded.users).all() and (items < loaded.items).all()

    return header + b"\n".join(lines) + b"\n", read


def synthetic(load: Callable, start: bytes, folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    def read(content: bytes) -> None:
        options = content.decode(errors="surrogateescape")
        if all(len(digits) < 4 for digits in "".join(c if c.isdecimal() else " " for c in options).split()):
            load("synthetic:" + options)  # larger ones are right, and take long

    return start, read


def records(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    """One of six files of CIFAR-10's binary version."""
    made = images.load("synthetic:train=5,test=2,channels=3")
    cifar.write_folder(folder, list(made[1:]))
    whole = (folder / "test_batch.bin").read_bytes()

    def read(content: bytes) -> None:
        (folder / "test_batch.bin").write_bytes(content)
        sound(images.load(str(folder)))

    return whole, read


def archive(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    """JPEG files in an .npz."""
    arrays: dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        files = [io.BytesIO() for _ in range(2)]
        for file in files:
            Image.fromarray(rng.integers(256, size=(32, 32, 3)).astype(np.uint8)).save(file, "JPEG", quality=30)
        content = [file.getvalue() for file in files]
        arrays[f"{split}_jpeg"] = np.frombuffer(b"".join(content), np.uint8)
        arrays[f"{split}_offsets"], arrays[f"{split}_labels"] = np.cumsum([0, *map(len, content)]), np.arange(2)
    made = io.BytesIO()
    (np.savez if rng.random() < 0.5 else np.savez_compressed)(made, **arrays)

    def read(content: bytes) -> None:
        (folder / "x.npz").write_bytes(content)
        sound(images.load(str(folder / "x.npz")))

    return made.getvalue(), read


def sound(data: images.Images) -> None:
    assert data.train_images.shape == (len(data.train_labels), 3, 32, 32) and data.test_labels.max() < 10


def decoders() -> Iterator[tuple[str, Callable]]:
    for name, pack in (("plain", bytes), ("gzip", gzip.compress), ("bzip2", bz2.compress), ("xz", lzma.compress)):
        yield f"text {name}", partial(text, pack, "char" if name == "plain" else "word")
    for name in FORMS:
        yield f"ratings {name}", partial(rated, name)
    yield "cifar records", records
    yield "cifar archive", archive
    for name, load, start in (("words", texts.load, b"tokens=60,symbols=5,seed=1"),
                              ("ratings", ratings.load, b"users=9,items=20,each=3,seed=1"),
                              ("images", images.load, b"train=20,test=5,seed=1,channels=3")):
        yield f"synthetic {name}", partial(synthetic, load, start)
