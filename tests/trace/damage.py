"""Damages files and asks the commands about them: run as a program, since a fault in HDF5 would end the process.

    damage.py prefixes|random COMMAND FILE SEED CASES

Each case is a line of JSON on stdout: the damage, the exit code, the output, and an uncaught exception. The case is
announced before it is tried, so that the last line names the damage that killed the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from mpicomp.cli.trace.command import trace
from mpicomp.trace import open_trace, validate

SECONDS = 120  # far more than any case needs


def damaged(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """A shorter file, one with up to four flipped bits, or one with a stretch of noise or zeros."""
    what = rng.choice(["cut", "flips", "noise", "zeros"])
    begin = int(rng.integers(0, len(data)))
    if what == "cut":
        return f"cut at {begin}", data[:begin]
    bent = bytearray(data)
    if what == "flips":
        places = rng.integers(0, len(data) * 8, rng.integers(1, 5)).tolist()
        for place in places:
            bent[place // 8] ^= 1 << place % 8
        return f"bits {places} flipped", bytes(bent)
    end = min(len(data), begin + int(rng.integers(1, 64)))
    bent[begin:end] = rng.bytes(end - begin) if what == "noise" else bytes(end - begin)
    return f"{what} in {begin}..{end}", bytes(bent)


def prefixes(data: bytes, cases: int, rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """Every shorter file, or so many of them."""
    lengths = range(len(data)) if cases >= len(data) else sorted(rng.choice(len(data), cases, replace=False).tolist())
    for length in lengths:
        yield f"cut at {length}", data[:length]


def ask(command: str, bent: Path, out: Path) -> dict:
    rest = ["-o", str(out), "--json"] if command == "recover" else ["--json"]
    result = CliRunner().invoke(trace, [command, str(bent), *rest])
    through = None if isinstance(result.exception, SystemExit) else result.exception
    said = {"exit": result.exit_code, "printed": result.output}
    said["exception"] = through and "".join(traceback.format_exception(through))
    if command == "recover" and out.exists():
        with open_trace(out) as recovered:
            said["t_start"] = recovered.events("t_start")["t_start"].tolist()
        said["faults"] = validate(out)
        out.unlink()
    return said


def main(how: str, command: str, file: str, seed: str, cases: str) -> None:
    rng, data = np.random.default_rng(int(seed)), Path(file).read_bytes()
    some = prefixes(data, int(cases), rng) if how == "prefixes" else (damaged(data, rng) for _ in range(int(cases)))
    os.fsync = lambda handle: None  # hundreds of files: what counts here is what they say
    folder = Path(tempfile.mkdtemp(dir=Path(file).parent))
    bent = folder / Path(file).name
    for what, content in some:
        if content != data:
            bent.write_bytes(content)
            signal.alarm(SECONDS)  # its default action: what loops inside a library ends here
            print(json.dumps({"trying": what}), flush=True)
            print(json.dumps({"case": what, **ask(command, bent, folder / "out.h5")}), flush=True)
            if os.listdir(folder) != [bent.name]:
                raise AssertionError(f"{what}: left behind {os.listdir(folder)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
