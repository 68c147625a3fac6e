"""Agreement of all ranks on a call, by a 16-byte reduction; only ranks that disagree exchange texts.

MPI does not notice ranks that call a collective with different counts, types or operations: the result is silently
wrong, or some ranks never return. So the ranks find the least and the greatest checksum of their signatures, which
describe the call: these are equal if all agree.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Sequence
from zlib import crc32

from ... import errors
from ..._util.partition import runs
from ...errors import Disagreement, MpicompError

LONGEST, AROUND = 2000, 80  # characters of a text that is shown whole; around the difference in a longer one
FAILED = -1  # below every checksum: one failed rank is enough to be seen by all


class Agreement:
    """Compares signatures over the ranks.

    Parameters
    ----------
    extremes : callable
        ``(number, patient)`` -> the least and the greatest number of all ranks.
    gather : callable
        Bytes of this rank -> the list of every rank's bytes.
    """

    def __init__(self, rank: int, extremes: Callable[[int, bool], tuple[int, int]],
                 gather: Callable[[bytes], list[bytes]]) -> None:
        self.rank, self.extremes, self.gather = rank, extremes, gather

    def check(self, signature: str, error: Exception | None = None, patient: bool = False) -> None:
        """Raise the same exception on every rank unless all gave the same signature and no error."""
        said = signature.encode(errors="backslashreplace")  # names of arrays may hold what UTF-8 cannot
        least, greatest = self.extremes(FAILED if error is not None else crc32(said), patient)
        if least != greatest or least == FAILED:
            raise self._verdict(signature, error) from error

    def _verdict(self, signature: str, error: Exception | None) -> Exception:
        mine = {"signature": signature}
        if error is not None:
            mine |= {"error": type(error).__name__, "text": str(error)}
        said = [read_text(text) for text in self.gather(json.dumps(mine).encode())]
        failed = [rank for rank, one in enumerate(said) if "error" in one]
        if failed:
            return joint_error(said, failed)
        return Disagreement(disagreement_text([one["signature"] for one in said]))


def read_text(text: bytes) -> dict[str, str]:
    """Return a rank's signature and error, or a note in place of a damaged text."""
    try:
        said = json.loads(text)
        if said.keys() <= {"signature", "error", "text"} and all(isinstance(one, str) for one in said.values()):
            return {"signature": said["signature"], **({"error": said["error"], "text": said["text"]}
                                                       if "error" in said else {})}  # fmt: skip
    except (ValueError, KeyError, AttributeError, RecursionError):
        pass
    return {"signature": f"(an unreadable text of {len(text)} bytes)"}


def joint_error(said: list[dict[str, str]], failed: list[int]) -> Exception:
    """Return the error of the lowest failing rank, in its class, with the other ranks that failed."""
    first = said[failed[0]]
    text = f"rank {failed[0]}: {first['text']}"
    if len(failed) > 1:
        same = all(said[rank]["text"] == first["text"] for rank in failed)
        text += f" ({'the same' if same else 'errors too'} on {ranks_text(failed[1:])})"
    return rebuild(first["error"], text)


def rebuild(name: str, text: str) -> Exception:
    """Return an exception of the class called ``name``, ours or Python's own; else a MpicompError with that name."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:  # a class with more arguments than a text, such as UnicodeDecodeError
            pass
    return MpicompError(f"{name}: {text}")


def disagreement_text(signatures: list[str]) -> str:
    """Return the message of a Disagreement."""
    show = str if max(map(len, signatures)) <= LONGEST else difference(signatures)
    return (
        f"ranks disagree on a collective. {'; '.join(sides(signatures, show))}. "
        "Call it with the same arguments, in the same order, on every rank"
    )


def difference(texts: Sequence[str]) -> Callable[[str], str]:
    """Return a function that shortens one of these texts to its beginning and its difference from the others."""
    begin = max(0, common(texts) - AROUND)
    same = common([text[::-1] for text in texts])

    def show(text: str) -> str:
        end = min(max(len(text) - same, begin + AROUND) + AROUND, begin + LONGEST)
        head = f"{text[:AROUND]} ... " if begin > AROUND else text[:begin]
        return head + text[begin:end] + (" ..." if end < len(text) else "")

    return show


def common(texts: Sequence[str]) -> int:
    """Return the number of characters that all have in common at the beginning."""
    least, greatest = min(texts), max(texts)  # a common beginning of these is one of all in between
    shorter = min(len(least), len(greatest))
    return next((i for i in range(shorter) if least[i] != greatest[i]), shorter)


def sides(texts: Sequence[str], show: Callable[[str], str] = str) -> list[str]:
    """Return each text with the ranks that gave it, the largest group first."""
    groups: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        groups.setdefault(text, []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [f"{ranks_text(ranks)}: {show(text)}" for text, ranks in ordered]


def ranks_text(ranks: list[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-2, 5``."""
    text = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs(ranks))
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"
