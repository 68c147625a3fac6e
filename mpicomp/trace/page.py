"""A report as one HTML file: no script, no request to another place, light and dark by the reader's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from .._util.atomic_files import check_output, write_bytes
from .._util.plurals import count
from .._util.progress import Progress, part_of, silent
from . import analysis, pictures, views
from .analyses import arrivals, compression, over_steps, shares, traffic
from .analyses.frame import Frame, opened
from .analyses.hang import hang
from .analyses.timeline import timeline
from .files import Source, files_of
from .pictures import Picture
from .tables import Result
from .units import duration
from .views import Fact, Grid, View

_MOST_ROWS = 12  # of a table; the command named below it prints more
_MAP_RANKS, _MAP_STEPS = 256, 400  # most cells of the heat map
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


class Section(NamedTuple):
    """A question: facts that answer it, tables with the commands that print all of them, and pictures."""

    title: str
    facts: Sequence[Fact]
    grids: Sequence[tuple[Grid, str]]
    pictures: Sequence[Picture | None]


def write_page(path: Source, output: Source, *, force: bool = False, progress: Progress = silent) -> Result:
    """Write the report of a trace, with pictures, to ``output``, and return the report as a dict.

    ``progress`` gets the current action and the share done, from 0 to 1.
    """
    output = Path(output).absolute()
    check_output(output, force, files_of(path))  # before the work
    progress("reading", 0.0)
    with opened(path) as frame:
        report = analysis.report(frame)
        text = _page(report["run"], frame, part_of(progress, 0.2, 1.0))
    write_bytes(output, force, text.encode())
    return report


def _page(run: Result, frame: Frame, progress: Progress) -> str:
    title = escape(f"Trace: {run.get('title') or run.get('run_id')}")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    warnings = views.warnings(run["ranks_not_closed"], run["n_dropped"], run["missing_parts"], run["n_backwards"])
    if run["ranks_not_closed"]:
        warnings.append(Fact("", f"The run did not end: {hang(frame)['why']}"))
    parts = []
    for place, section in enumerate(_SECTIONS):
        progress(f"section {place + 1} of {len(_SECTIONS)}", place / len(_SECTIONS))
        parts.append(section(frame))
    ranks, nodes, events = (count(run.get(f"n_{noun}s", 0), noun) for noun in ("rank", "node", "event"))
    size = f"{ranks} on {nodes}, {events} in {duration(run['duration'])}, recorded {run.get('created')}"
    links = (f'<a href="#s{place}">{escape(part.title)}</a>' for place, part in enumerate(parts))
    return "\n".join([
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width">',
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>", f"<p>{escape(size)}</p>",
        *(f'<p class="warning">{escape(fact.text)}</p>' for fact in warnings), "<nav>", *links, "</nav>",
        *(text for place, part in enumerate(parts) for text in _section(place, part)),
        "<h2>The run</h2>", _table([[fact.name, fact.text] for fact in views.run(run) + views.properties(run)], 2),
        "</body></html>\n",
    ])  # fmt: skip


def _section(place: int, section: Section) -> Iterator[str]:
    yield f'<h2 id="s{place}">{escape(section.title)}</h2>'
    yield from (f"<p>{escape(fact.text[:1].upper() + fact.text[1:])}.</p>" for fact in section.facts)
    for grid, command in section.grids:
        yield _table(grid.rows(_MOST_ROWS), grid.left, [column.title for column in grid.columns])
        yield f'<p class="more">All of it: mpicomp trace {command}</p>'
    for index, picture in enumerate(filter(None, section.pictures)):
        caption = f"<figcaption>{escape(picture.caption)}</figcaption>"
        yield f"<figure>{caption}{pictures.svg(f'p{place}-{index}', picture)}</figure>"


def _table(rows: list[list[str]], left: int, heads: list[str] | None = None) -> str:
    """A table whose first ``left`` columns are texts."""

    def cells(tag: str, row: list[str]) -> str:
        kinds = [' class="text"' if place < left else "" for place in range(len(row))]
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    head = f"<thead><tr>{cells('th', heads)}</tr></thead>" if heads else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


def _facts(*some: View) -> list[Fact]:
    """Facts and notes of views, except those whose picture or table says the same."""
    return [fact for view in some for fact in (*view.facts, *view.notes) if fact.name not in ("course", "run time")]


def _first_grids(named: Iterable[tuple[View, str]]) -> list[tuple[Grid, str]]:
    return [(view.grids[0], command) for view, command in named if view.grids and view.grids[0].length]


def _time(frame: Frame) -> Section:
    course, split = over_steps.steps(frame), shares.breakdown(frame)
    facts = _facts(views.steps(course), views.overlap(shares.overlap(frame)),
                   views.efficiency(shares.efficiency(frame)))
    drawn = [pictures.breakdown(split)] if split["ranks"]["span"].any() else []
    if course["count"]:
        drawn += [pictures.course(course["steps"], over_steps.spikes(frame)), pictures.gantt(timeline(frame))]
    return Section("Time", facts, _first_grids([(views.breakdown(split), "breakdown")]), drawn)


def _late(frame: Frame) -> Section:
    found, sudden = arrivals.stragglers(frame), over_steps.spikes(frame)
    late, spikes = views.stragglers(found), views.spikes(sudden)
    drawn = [] if found["kind"] is None else [pictures.lateness(found)]
    if sudden["steps"]:
        drawn.append(pictures.heatmap(over_steps.heatmap(frame, "duration", _MAP_RANKS, _MAP_STEPS)))
    grids = _first_grids([(late, "stragglers"), (spikes, "spikes")])
    return Section("Lateness", _facts(late, spikes), grids, drawn)


def _worth(frame: Frame) -> Section:
    found, calls = views.codec(compression.codec(frame)), views.collectives(traffic.collectives(frame))
    measured = traffic.bandwidth(frame)
    drawn = [pictures.bandwidth(measured)] if len(measured["bandwidth"]["algo"]) else []
    return Section("Benefit of compression", _facts(found, views.traffic(analysis.traffic(frame))),
                   _first_grids([(found, "codec"), (calls, "collectives")]), drawn)


def _training(frame: Frame) -> Section:
    found = compression.measures(frame)
    view, steps = views.measures(found), found["steps"]
    drawn = [pictures.metric(name, steps["step"], steps[name]) for name in steps if name != "step"]
    return Section("Effect on the training", _facts(view), _first_grids([(view, "measures")]), drawn)


def _kinds(frame: Frame) -> Section:
    view = views.phases(analysis.phases(frame), wide=True)
    return Section("All events", view.facts, _first_grids([(view, "summary")]), [])


_SECTIONS: tuple[Callable[[Frame], Section], ...] = (_time, _late, _worth, _training, _kinds)
