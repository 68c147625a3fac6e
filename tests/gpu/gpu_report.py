"""Turn the outcomes of tests/gpu/gpu_check.py into a document and tables."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

WRONG = "the result is not what it should be"
MEASURED = {"case", "elements", "moved_bytes", "seconds", "bytes_per_s"}
FIGURES = ("| figure | elements | must move, MB | ms | GB/s | of the copy | aim |", "|---|---|---|---|---|---|---|")


def json_lines(text: str) -> list[dict[str, Any]]:
    """The objects that a part printed, one per line; a line that was cut off is left out."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return found


def document(name: str, outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"format": "mpicomp-gpu-check", "version": 1, "gpu": name, "time": now, "parts": outcomes}


def save(found: dict[str, Any], target: Path) -> None:
    """Replace the document and its table, which are whole at any time."""
    for path, text in ((target, json.dumps(found, indent=1) + "\n"), (target.with_suffix(".md"), markdown(found))):
        aside = path.with_name(f"{path.name}.new")
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, path)


def markdown(found: dict[str, Any]) -> str:
    """The document as tables: outcomes, reasons, every figure, and every wrong result."""
    lines = [f"# {found['gpu']}", "", f"Measured {found['time']} by `make gpu-check`.", "",
             "| part | outcome | cases that passed | seconds |", "|---|---|---|---|"]
    for part in found["parts"]:
        reason = f": {part['reason']}" if part.get("reason") else ""
        lines.append(f"| {part['part']} | {part['outcome']}{reason} | {passed(part)} | {part.get('seconds', '')} |")
    figures = [row for part in found["parts"] for row in rows(part)]
    lines += ["", *FIGURES, *figures] if figures else []
    for part in found["parts"]:
        lines += [f"\n{line}" for line in wrong(part)]
    return "\n".join(lines) + "\n"


def part_table(part: dict[str, Any]) -> str:
    """One part's figures and wrong results; empty if it has none."""
    figures = rows(part)
    return "\n".join([*([*FIGURES, *figures] if figures else []), *wrong(part)])


def rows(part: dict[str, Any]) -> list[str]:
    return [figure(one) for one in part["results"] if set(one) >= MEASURED]


def passed(part: dict[str, Any]) -> str:
    """``7 of 8``: of the cases that a part reported, how many passed; a test file counts its tests."""
    judged = [one for one in part["results"] if "passed" in one]
    well = sum(one.get("tests", 1) for one in judged if one["passed"])
    return f"{well} of {sum(one.get('tests', 1) for one in judged)}" if judged else ""


def wrong(part: dict[str, Any]) -> list[str]:
    failed = [one for one in part["results"] if one.get("passed") is False]
    return [f"{part['part']}: {one.get('case')}: {one.get('error', one.get('difference', WRONG))}" for one in failed]


def figure(one: dict[str, Any]) -> str:
    share = one.get("of_copy", one.get("of_pinned_copy"))
    aims = []
    if share is not None and one.get("target") is not None:
        aims.append(aim(f"{one['target']:.0%}", share >= one["target"]))
    if "times_ours" in one:
        aims.append(aim(f"{one['least_times_ours']} times our time: {one['times_ours']:.1f}",
                        one["times_ours"] >= one["least_times_ours"]))
    if "beyond_memory_s" in one:
        most, beyond = one["most_beyond_s"], one["beyond_memory_s"]
        aims.append(aim(f"{1e6 * most:.0f} us beyond its memory's time: {1e6 * beyond:.0f}", beyond <= most))
    if one.get("queued_ahead") is False:
        aims.append("with time that the host took to queue it")
    return (f"| {one['case']} | {one['elements']:,} | {one['moved_bytes'] / 1e6:.1f} | {1e3 * one['seconds']:.3f} "
            f"| {one['bytes_per_s'] / 1e9:.0f} | {'' if share is None else f'{share:.0%}'} | {'; '.join(aims)} |")


def aim(what: str, met: bool) -> str:
    return f"{what}, {'met' if met else 'MISSED'}"
