"""What the report page answers: each section asks its analyses one question and says it in facts, tables, pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import analysis, pictures
from .analyses import arrivals, compression, over_steps, shares, traffic
from .analyses.frame import Frame
from .analyses.picture import timeline
from .pictures import Picture
from .progress import Progress, silent
from .units import duration, is_known, nbytes, number, percent, some_ranges, time_of
from .wording import SCHEME_ROWS, culprit

_MOST_ROWS = 12  # of a table; the commands named below it show more
_MAP_RANKS, _MAP_STEPS = 256, 400  # cells of the heat map, at most


class Column(NamedTuple):
    title: str
    values: Sequence[Any] | np.ndarray
    show: Callable[[Any], str] = str


class Grid(NamedTuple):
    """A table: its columns, the first ``left`` of them texts; the command that has all of it."""

    columns: list[Column]
    left: int = 1
    more: str = ""

    def rows(self) -> list[list[str]]:
        cells = zip(*(column.values for column in self.columns), strict=True)
        return [[column.show(cell) for column, cell in zip(self.columns, row, strict=True)] for row in cells]


class Section(NamedTuple):
    title: str
    facts: list[str]
    grids: list[Grid]
    pictures: list[Picture]


def sections(frame: Frame, progress: Progress = silent) -> list[Section]:
    """All sections of a trace that is open, in the order in which one asks."""
    made, every = [], (_time, _late, _worth, _training, _kinds)
    for place, section in enumerate(every):
        progress(f"section {place + 1} of {len(every)}", place / len(every))
        made.append(section(frame))
    return made


def _head(table: dict[str, Any], order: Any = None) -> dict[str, np.ndarray]:
    """The rows that a page shows of a table."""
    return {name: np.asarray(column)[slice(None) if order is None else order][:_MOST_ROWS]
            for name, column in table.items()}  # fmt: skip


def _time(frame: Frame) -> Section:
    course, split = over_steps.steps(frame), shares.breakdown(frame)
    facts = [*_of_steps(course), *_of_overlap(shares.overlap(frame)), *_of_efficiency(shares.efficiency(frame))]
    drawn = []
    if split["ranks"]["span"].any():
        drawn.append(pictures.breakdown(split))
    if course["count"]:
        drawn += [pictures.course(course["steps"], over_steps.spikes(frame)), pictures.gantt(timeline(frame))]
    table = _head(split["overall"])
    grid = Grid([Column("phase", table["kind"]), Column("class", table["class"]),
                 Column("share", table["share"], percent), Column("mean rank", table["mean"], time_of),
                 Column("least", table["min"], time_of), Column("most", table["max"], time_of),
                 Column("of rank", table["slowest_rank"])], 2, "mpicomp trace breakdown")  # fmt: skip
    return Section("Where did the time go?", facts, [grid] if len(table["kind"]) else [], drawn)


def _of_steps(course: dict[str, Any]) -> list[str]:
    if not course["count"]:
        return ["No step was recorded."]
    facts = [f"{course['count']} steps: median {duration(course['median'])}, 99th percentile "
             f"{duration(course['p99'])}, the first {duration(course['first'])}."]  # fmt: skip
    if course["drifts"]:
        facts.append(f"The steps drift: {course['drift']:+.1%} from the first third to the last "
                     f"(noise {course['drift_noise']:.1%}).")  # fmt: skip
    return facts


def _of_overlap(result: dict[str, Any]) -> list[str]:
    if result["share"] is None:
        return ["No communication was recorded."]
    return [f"{result['share']:.1%} of the communication is hidden under work; {duration(result['exposed'])} in all "
            "ranks are waited for."]  # fmt: skip


def _of_efficiency(result: dict[str, Any]) -> list[str]:
    if not result["steps"]:
        return []
    whole, balance, speaking = (percent(result[name]) for name in
                                ("parallel_efficiency", "load_balance", "communication_efficiency"))  # fmt: skip
    text = f"Parallel efficiency {whole} = load balance {balance} x communication efficiency {speaking}"
    if result["transfer"] is None:
        return [f"{text}."]
    return [f"{text}; of the latter, ranks waiting for each other leave {percent(result['serialisation'])} and the "
            f"network {percent(result['transfer'])}."]  # fmt: skip


def _late(frame: Frame) -> Section:
    found, sudden = arrivals.stragglers(frame), over_steps.spikes(frame)
    facts, grids, drawn = [], [], []
    if found["kind"] is None:
        facts.append("No communication of several ranks was recorded.")
    else:
        facts += _of_lateness(found)
        grids.append(_latest(found["ranks"]))
        drawn.append(pictures.lateness(found))
    if sudden["steps"]:
        limit = f" (above {duration(sudden['limit'])})"
        facts.append(f"{sudden['count'] or 'None'} of {sudden['steps']} steps took much longer than the median{limit}.")
        cells = over_steps.heatmap(frame, "duration", _MAP_RANKS, _MAP_STEPS)
        drawn.append(pictures.heatmap(cells))
    if sudden["count"]:
        grids.append(_spikes(sudden["spikes"]))
    return Section("Who was late?", facts, grids, drawn)


def _of_lateness(found: dict[str, Any]) -> list[str]:
    doubt = found["clock_uncertainty"]
    clocks = f"clocks are known to {duration(doubt)}" if doubt else "all ranks read one clock"
    late = f"Late: rank {some_ranges(found['late_ranks'])}" if found["late_ranks"] else "No rank is late"
    late += "" if found["late_ranks"] else " by more than clocks and noise allow to say"
    facts = [f"{late}, at {found['calls']} calls of {found['kind']} ({clocks})."]
    return facts + ([f"Rank {some_ranges(found['absent'])} never came to one."] if found["absent"] else [])


def _latest(table: dict[str, Any]) -> Grid:
    doubt = np.maximum(table["uncertainty"], table["noise"])
    rows = _head({**table, "doubt": doubt}, np.lexsort((-table["lateness"], ~table["significant"])))
    return Grid([Column("rank", rows["rank"]), Column("node", rows["node"]),
                 Column("median lateness", rows["lateness"], time_of), Column("known to", rows["doubt"], time_of),
                 Column("late to", rows["late"], percent), Column("last at", rows["last"], percent),
                 Column("delayed all by", rows["caused"], time_of)], 1, "mpicomp trace stragglers")  # fmt: skip


def _spikes(table: dict[str, Any]) -> Grid:
    rows = _head(table)
    who = [culprit(*row) for row in zip(rows["cause"], rows["rank"], rows["ranks"], strict=True)]
    return Grid([Column("spike: step", rows["step"]), Column("made by", who), Column("in phase", rows["phase"]),
                 Column("duration", rows["duration"], time_of), Column("x median", rows["ratio"], number),
                 Column("excess", rows["excess"], time_of)], 3, "mpicomp trace spikes")  # fmt: skip


def _worth(frame: Frame) -> Section:
    found, calls = compression.codec(frame), traffic.collectives(frame)["collectives"]
    schemes, grids, drawn = found["schemes"], [], []
    if schemes:
        columns = [[show(value) for value in schemes[name]] for _, name, show in SCHEME_ROWS]
        grids.append(Grid([Column("a rank and step", [title for title, _, _ in SCHEME_ROWS]),
                           *(Column(str(name), [cells[place] for cells in columns])
                             for place, name in enumerate(schemes["scheme"]))], 1, "mpicomp trace codec"))  # fmt: skip
    if calls:
        grids.append(_calls(_head(calls)))
    measured = traffic.bandwidth(frame)
    if len(measured["bandwidth"]["algo"]):
        drawn.append(pictures.bandwidth(measured))
    reason = [f"{found['reason'][0].upper()}{found['reason'][1:]}."] if found["reason"] else []
    facts = [*_verdicts(schemes), *reason, *_of_traffic(analysis.traffic_of(frame.trace))]
    return Section("Was compression worth it?", facts, grids, drawn)


def _verdicts(schemes: dict[str, Any]) -> list[str]:
    facts = []
    for row, name in enumerate(schemes.get("scheme", ())):
        worth, speedup, basis = (schemes[key][row] for key in ("worth", "speedup", "basis"))
        if basis != "itself dense":
            against = f": {number(speedup)} times as fast as dense ({basis})" if is_known(speedup) else ""
            pays = f"pays on links slower than {number(schemes['break_even'][row])} GB/s"
            facts.append(f"{name}: {worth}{against}; {pays}.")
    return facts


def _of_traffic(sent: dict[str, Any]) -> list[str]:
    if not sent["kind"]:
        return []
    rate = sent["compression_rate"]
    less = f", a dense all-reduce {number(rate)} times as much" if rate else ""
    return [f"A rank sends {nbytes(sent['nbytes_sent_per_rank_and_step'])} in a step{less}."]


def _calls(rows: dict[str, Any]) -> Grid:
    texts = [Column(name, rows[name]) for name in ("kind", "algo", "scheme")]
    return Grid([*texts, Column("size", rows["size_bin"], nbytes), Column("calls", rows["calls"]),
                 Column("time", rows["time"], time_of), Column("wait", rows["wait"], time_of),
                 Column("sent", rows["sent"], nbytes), Column("busbw GB/s", rows["busbw"], number)],
                3, "mpicomp trace collectives")  # fmt: skip


def _training(frame: Frame) -> Section:
    found = compression.measures(frame)
    facts = [f"{remark[0].upper()}{remark[1:]}." for remark in found["remarks"]]
    if not found["metrics"]:
        return Section("What did it do to the training?", facts, [], [])
    table = found["metrics"]
    names = ("first", "last", "least", "greatest")
    grid = Grid([Column("metric", table["metric"]), Column("steps", table["steps"]),
                 *(Column(name, table[name], number) for name in names), Column("change", table["change"], percent)],
                1, "mpicomp trace measures")  # fmt: skip
    drawn = [pictures.metric(name, found["steps"]["step"], found["steps"][name]) for name in table["metric"]]
    return Section("What did it do to the training?", facts, [grid], [one for one in drawn if one])


def _kinds(frame: Frame) -> Section:
    rows = analysis.phases_of(frame.trace)
    grid = Grid([Column("kind", [row["kind"] for row in rows]), Column("count", [row["count"] for row in rows]),
                 *(Column(name, [row[name] for row in rows], time_of) for name in ("median", "p99", "max", "total")),
                 *(Column(title, [row[name] for row in rows], nbytes)
                   for title, name in (("sent", "nbytes_sent"), ("received", "nbytes_recv")))],
                1, "mpicomp trace summary")  # fmt: skip
    fact = "One event may lie in another: these times need not add up."
    return Section("All events", [fact] if rows else ["None."], [grid] if rows else [], [])
