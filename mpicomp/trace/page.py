"""A report as one HTML file: no script, no request to anywhere, light and dark by the reader's choice."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from . import analysis, pictures
from .aside import write_aside

_CARD = ("title", "created", "creator", "run_id", "n_ranks", "n_nodes", "files", "n_events", "n_dropped",
         "duration", "clock_uncertainty", "git_revision", "slurm_job_id", "mpi_library", "python_version",
         "mpi4py_version", "numpy_version", "cupy_version", "hdf5_version")  # fmt: skip
_UNITS = {"duration": " ns", "clock_uncertainty": " ns"}
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: CanvasText; background: Canvas; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { text-align: right; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid GrayText; vertical-align: top; }
td:first-child, th:first-child, .card td { text-align: left; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; break-inside: avoid; }
svg { width: 100%; height: auto; color: CanvasText; }
.warning { border-left: .3rem solid #c00; padding-left: .6rem; font-weight: bold; }
@media print { :root { color-scheme: light; } body { margin: 0; max-width: none; } h2, tr { break-inside: avoid; } }
"""


def write_page(path, output, *, force: bool = False) -> dict:
    """Write the report of a trace to ``output``, with pictures; the report as a dict."""
    report = analysis.report(path)
    text = _page(report)
    write_aside(Path(output).absolute(), force, lambda part: _create(part, text))
    return report


def _create(part: Path, text: str) -> None:
    with part.open("x", encoding="utf-8") as file:
        file.write(text)


def _page(report: dict) -> str:
    run = report["run"]
    title = escape(f"Trace: {run.get('title') or run.get('run_id')}")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    figures = (f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
               for caption, svg in pictures.pictures(report))  # fmt: skip
    return "\n".join([
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width">',
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>",
        *(f'<p class="warning">{escape(said)}</p>' for said in _warnings(run)),
        _table([[name.replace("_", " "), f"{run[name]}{_UNITS.get(name, '')}"] for name in _CARD
                if run.get(name) not in (None, "")] + [["command", " ".join(run["command_line"])]], "card"),
        "<h2>Phases</h2><p>Times in ns. Phases may nest: shares need not add up to 1.</p>",
        _records(report["phases"]), "<h2>Steps</h2>", _facts(report["steps"]),
        "<h2>Traffic</h2>", _facts(report["traffic"]), "<h2>Imbalance</h2>", _facts(report["imbalance"]),
        "<h2>Pictures</h2>", *figures, "<h2>Metrics</h2>",
        _records([{"metric": name} | {key: course[key] for key in ("count", "first", "last", "min", "max")}
                  for name, course in report["metrics"].items()]),
        "</body></html>\n",
    ])  # fmt: skip


def _warnings(run: dict) -> list[str]:
    said = [f"rank {rank}: {state}" for rank, state in run["ranks_not_closed"].items()]
    lines = [f"INCOMPLETE: {', '.join(said)}"] if said else []
    lines += [f"INCOMPLETE: {run['missing_parts']}"] if run["missing_parts"] else []
    lines += [f"{run['n_dropped']} events were dropped: the disk was full"] if run["n_dropped"] else []
    return lines + ([f"{run['n_backwards']} events end before they begin"] if run["n_backwards"] else [])


def _facts(values: dict[str, Any]) -> str:
    return _table([[name.replace("_", " "), _number(value)] for name, value in values.items()
                   if not isinstance(value, list)], "card")  # fmt: skip


def _records(rows: list[dict]) -> str:
    if not rows:
        return "<p>none</p>"
    return _table([[_number(value) for value in row.values()] for row in rows], heads=list(rows[0]))


def _table(rows: list[list[str]], kind: str = "", heads: list[str] | None = None) -> str:
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in heads or ())
    body = ("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="{kind}">' + (f"<tr>{head}</tr>" if head else "") + "".join(body) + "</table>"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
