"""The readers of what is kept for later: checkpoints' arrays and manifests, and the machine that `tune` measures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from mpicomp.checkpoint import load_arrays, parts
from mpicomp.checkpoint.folder import read_manifest, write_manifest
from mpicomp.checkpoint.load import CHECKSUM
from mpicomp.errors import MpicompError
from mpicomp.simulate import machine as machines

Read = Callable[[bytes], None]


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.unlink(missing_ok=True)  # what a library may still have open is another file
    path.write_bytes(content)
    return path


def arrays(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    """A checkpoint's state in a file of its own, under a checksum."""
    path = folder / "state.h5"
    if not path.exists():
        own = np.random.default_rng(1)  # whichever case comes first
        state = {"model": {"w": own.standard_normal((3, 4)), "step": 7}, "own": {"b": np.arange(5)}}
        parts.write(path, {**state, CHECKSUM: {"crc32": parts.digest(state)}})
    content = path.read_bytes()

    def read(content: bytes) -> None:
        state = load_arrays(written(folder, "bent.h5", content))
        assert state["model"]["step"] == 7 and state["model"]["w"].shape == (3, 4)  # the values written above

    return content, read


def manifest(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    path = folder / "manifest.json"
    facts = {"format": "mpicomp-checkpoint", "version": 1, "step": int(rng.integers(99)), "common": [3, 4]}
    write_manifest(path, facts)

    def read(content: bytes) -> None:
        assert read_manifest(written(folder, "bent.json", content)) == facts

    return path.read_bytes(), read


def machine(folder: Path, rng: np.random.Generator) -> tuple[bytes, Read]:
    wire = machines.Wire(latency=2e-6, bandwidth=1e9)
    whole = machines.dump(machines.Machine(wire, wire, 4, {machines.KERNELS[0]: 1e-9}))

    def read(content: bytes) -> None:
        try:
            document = json.loads(content.decode())
        except (ValueError, RecursionError) as error:  # the command reads the file and reports this
            raise MpicompError("no JSON") from error
        machines.load(document, "machine.json").quiet()

    return json.dumps(whole).encode(), read


def decoders() -> Iterator[tuple[str, Callable]]:
    yield "checkpoint arrays", arrays
    yield "checkpoint manifest", manifest
    yield "machine json", machine
