"""A report as one HTML file: no script, no request to anywhere, light and dark by the reader's choice."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from . import analysis, pictures
from .analyses.frame import Frame
from .analyses.hang import hang
from .atomic_output import check_output, files_of, write_content_aside
from .progress import Progress, part_of, silent
from .read import Source, Trace, open_trace
from .sections import Grid, Section, sections
from .units import count, duration
from .wording import settings, shortcomings

_CARD = ("title", "created", "creator", "run_id", "n_ranks", "n_nodes", "files", "n_events", "n_dropped",
         "git_revision", "slurm_job_id", "mpi_library", "python_version",
         "mpi4py_version", "numpy_version", "cupy_version", "hdf5_version")  # fmt: skip
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: CanvasText; background: Canvas; }
h1 { margin-bottom: .2rem; overflow-wrap: anywhere; } h2 { margin-top: 2.5rem; }
nav { margin: 1rem 0; } nav a { margin-right: 1.2rem; white-space: nowrap; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0 .2rem; font-size: .93em; font-variant-numeric: tabular-nums; }
td, th { text-align: right; padding: .2rem 1rem .2rem 0; vertical-align: top; white-space: nowrap;
         border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
td.text, th.text { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 4rem; }
figure { margin: 1.5rem 0; break-inside: avoid; }
figcaption, .more { color: color-mix(in srgb, currentColor 75%, transparent); font-size: .93em; }
figcaption { font-weight: 600; margin-bottom: .3rem; break-after: avoid; }
.more { margin: 0 0 1rem; }
svg { width: 100%; height: auto; color: CanvasText; }
.warning { border-left: .3rem solid #c00; padding-left: .6rem; font-weight: bold; }
@media print {
  :root { color-scheme: light; } nav { display: none; }
  body { margin: 0; max-width: none; font-size: 11px; padding: 0; }
  h2, p { break-after: avoid; } tr, .wide { break-inside: avoid; } p.more { break-after: auto; }
  td, th { padding-right: .6rem; }
}
"""


def write_page(path: Source, output: Source, *, force: bool = False, progress: Progress = silent) -> dict[str, Any]:
    """Write the report of a trace to ``output``, with pictures; the report as a dict.

    ``progress`` is told now and then what is being done, and which share is done, from 0 to 1.
    """
    output = Path(output).absolute()
    check_output(output, force, files_of(Path(path)))  # before the work, too
    progress("reading", 0.0)
    report = analysis.report(path)
    with open_trace(path) as trace:
        text = _page(report["run"], trace, part_of(progress, 0.2, 1.0))
    write_content_aside(output, force, text.encode())
    return report


def _page(run: dict[str, Any], trace: Trace, progress: Progress) -> str:
    title = escape(f"Trace: {run.get('title') or run.get('run_id')}")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    warnings = shortcomings(run["ranks_not_closed"], run["n_dropped"], run["missing_parts"], run["n_backwards"])
    warnings += [f"It stands still: {hang(trace)['why']}"] if run["ranks_not_closed"] else []
    parts = sections(Frame(trace), progress)
    links = (f'<a href="#s{place}">{escape(part.title)}</a>' for place, part in enumerate(parts))
    return "\n".join([
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width">',
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>", f"<p>{escape(_line(run))}</p>",
        *(f'<p class="warning">{escape(said)}</p>' for said in warnings), "<nav>", *links, "</nav>",
        *(text for place, part in enumerate(parts) for text in _section(place, part)),
        "<h2>The run</h2>", _table([[name.replace("_", " "), str(run[name])] for name in _CARD
                                    if run.get(name) not in (None, "")] + _tail(run), left=2),
        "</body></html>\n",
    ])  # fmt: skip


def _line(run: dict[str, Any]) -> str:
    """The run in a sentence."""
    hosts = ", ".join(run["hosts"][:4]) + (" ..." if len(run["hosts"]) > 4 else "")
    ranks, nodes, events = (count(run.get(f"n_{noun}s", 0), noun) for noun in ("rank", "node", "event"))
    return f"{ranks} on {nodes} ({hosts}), {events} in {duration(run['duration'])}, recorded {run.get('created')}"


def _tail(run: dict[str, Any]) -> list[list[str]]:
    return [
        ["duration", duration(run["duration"])],
        ["clock uncertainty", duration(run["clock_uncertainty"]) if run["clock_uncertainty"] else "0: one clock"],
        ["command", " ".join(run["command_line"])],
        ["settings", settings(run["configuration"])],
        *([name, value] for name, value in run["environment"].items()),
    ]


def _section(place: int, section: Section) -> Iterator[str]:
    yield f'<h2 id="s{place}">{escape(section.title)}</h2>'
    yield from (f"<p>{escape(fact)}</p>" for fact in section.facts)
    yield from map(_grid, section.grids)
    for index, picture in enumerate(section.pictures):
        caption = f"<figcaption>{escape(picture.caption)}</figcaption>"
        yield f"<figure>{caption}{pictures.svg(f'p{place}-{index}', picture)}</figure>"


def _grid(grid: Grid) -> str:
    more = f'<p class="more">All of it: {escape(grid.more)}</p>' if grid.more else ""
    return _table(grid.rows(), grid.left, [column.title for column in grid.columns]) + more


def _table(rows: list[list[str]], left: int, heads: list[str] | None = None) -> str:
    """A table whose first ``left`` columns are texts."""

    def cells(tag: str, row: list[str]) -> str:
        kinds = [' class="text"' if place < left else "" for place in range(len(row))]
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    head = f"<thead><tr>{cells('th', heads)}</tr></thead>" if heads else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'
