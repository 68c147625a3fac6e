"""Valid bytes bent: what a broken disk, a broken program or an enemy would make of them."""

from __future__ import annotations

import struct

import numpy as np

EXTREMES = (0, 1, -1, 255, 256, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**63 - 1, -(2**63))
TOKENS = (b"[" * 5000, b"{" * 5000, b"9" * 5000, b"-1", b"1e999", b"nan", b"NaN", b"-Infinity", b"null", b"\xff\xfe",
          b"\0", b"\xc3\xa9", b'"', b":", b"=", b"\n", b",", b"[]", b"{}", b"1_0", b"99999999999999999999", b"true",
          b"[[a]]", b"0x7f", b"''", b"a.b.c")  # fmt: skip
WAYS = ("nothing", "cut", "longer", "flips", "word", "words", "noise", "zeros", "double", "garbage", "token", "tokens")


def bent(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """Bend data: return the name of the change and the result; the change is ``nothing`` in one case of twelve."""
    way = str(rng.choice(WAYS))
    return way, _bend(way, bytearray(data), rng)


def _bend(way: str, data: bytearray, rng: np.random.Generator) -> bytes:
    size = len(data)
    at = int(rng.integers(0, size + 1))
    end = min(size, at + int(rng.integers(1, 65)))
    if way == "cut":
        return bytes(data[:at])
    if way == "longer":
        return bytes(data) + rng.bytes(int(rng.integers(1, 40)))
    if way == "garbage":
        return rng.bytes(int(rng.integers(0, 2 * size + 2)))
    if way == "double":
        return bytes(data[:end] + data[at:])
    if way in ("noise", "zeros"):
        data[at:end] = rng.bytes(end - at) if way == "noise" else bytes(end - at)
    for _ in range(int(rng.integers(1, 5)) if way == "flips" and size else 0):
        bit = int(rng.integers(0, 8 * size))
        data[bit // 8] ^= 1 << bit % 8
    for _ in range({"word": 1, "words": 3}.get(way, 0)):
        _write_number(data, rng)
    for _ in range({"token": 1, "tokens": 4}.get(way, 0)):
        at = int(rng.integers(0, len(data) + 1))
        end = min(len(data), at + int(rng.integers(0, 12)))
        data[at:end] = TOKENS[int(rng.integers(len(TOKENS)))]
    return bytes(data)


def _write_number(data: bytearray, rng: np.random.Generator) -> None:
    """A number that no honest writer writes where a number may stand."""
    number, form = int(rng.choice(np.array(EXTREMES, object))), str(rng.choice(["<q", "<i", "<H"]))
    width = struct.calcsize(form)
    if len(data) >= width:
        at = int(rng.integers(0, (len(data) - width) // width + 1)) * width
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
