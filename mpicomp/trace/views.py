"""Results of analyses as facts and tables of text, which the terminal and the HTML page render alike.

A function has the name of the analysis whose result it takes. The text of a fact is a sentence without its label, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from .._util.plurals import count
from .tables import Result, Table
from .units import digits, duration, is_known, nbytes, number, percent, some_ranges, sparkline, time_of

_MOST_RANKS = 16  # late ones that are named


class Fact(NamedTuple):
    name: str
    text: str
    alarm: bool = False


class Column(NamedTuple):
    title: str
    values: Sequence[object] | np.ndarray
    show: Callable[..., str] = str


class Grid(NamedTuple):
    """A table whose first ``left`` columns are texts; a terminal shows ``most`` rows."""

    columns: Sequence[Column]
    left: int = 1
    most: int = 20

    @property
    def length(self) -> int:
        return len(self.columns[0].values)

    def rows(self, most: int) -> list[list[str]]:
        """The cells of the first ``most`` rows."""
        cells = zip(*(column.values[:most] for column in self.columns), strict=True)
        return [[column.show(cell) for column, cell in zip(self.columns, row, strict=True)] for row in cells]


class View(NamedTuple):
    """Facts, tables, notes, and the uncertainty (ns) of comparisons between clocks; None if none are compared."""

    facts: Sequence[Fact]
    grids: Sequence[Grid] = ()
    notes: Sequence[Fact] = ()
    clocks: float | None = None


Columns: TypeAlias = Iterable[tuple[str, str, Callable[..., str]]]  # title, name in the table, format


def _grid(table: Table, columns: Columns, left: int = 1, order: np.ndarray | None = None) -> Grid:
    rows = slice(None) if order is None else order
    return Grid([Column(title, table[name][rows], show) for title, name, show in columns], left)


def _gbs(value: float) -> str:
    return number(value, 3)


def _number(value: float | None) -> str:
    return number(value, 5)


# -- the run


def run(card: Result) -> list[Fact]:
    """Facts of ``info`` that head a report."""
    hosts = card["hosts"]
    shown = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    facts = [
        Fact("title", card.get("title") or ""),
        Fact("ranks", f"{card.get('n_ranks')} on {count(len(hosts), 'node')} ({shown})"),
        Fact("recorded", f"{count(card['n_events'], 'event')} in {duration(card['duration'])}"),
        Fact("created", f"{card.get('created')} by {card.get('creator')}"),
        Fact("command", " ".join(card["command_line"])),
    ]
    return [fact for fact in facts if fact.text]


def properties(card: Result) -> list[Fact]:
    """Metadata of ``info``: versions, settings and environment."""
    names = ("run_id", "n_ranks", "n_nodes", "files", "n_events", "n_dropped", "git_revision", "slurm_job_id",
             "mpi_library", "python_version", "mpi4py_version", "numpy_version", "cupy_version", "hdf5_version")
    facts = [Fact(name.replace("_", " "), str(card[name])) for name in names if card.get(name) not in (None, "")]
    facts.append(Fact("duration", duration(card["duration"])))
    facts.append(Fact("settings", settings(card["configuration"])))
    return facts + [Fact(name, value) for name, value in card["environment"].items()]


def settings(configuration: Result) -> str:
    """The configuration of a run in a line, without options that are not set or off."""
    given = {name: ",".join(map(str, value)) if isinstance(value, list) else value
             for name, value in configuration.items() if value is not None and value is not False}  # fmt: skip
    return " ".join(f"{name}={value}" for name, value in given.items() if value != "") or "-"


def warnings(not_closed: dict[int, str], n_dropped: int, missing_parts: str = "", n_backwards: int = 0) -> list[Fact]:
    """Defects of a trace that a reader must know before its numbers, from the result of ``info`` or ``recover``."""
    states: dict[str, list[int]] = {}
    for rank, state in not_closed.items():
        states.setdefault(state, []).append(int(rank))
    ranks = "; ".join(f"{state}: rank {some_ranges(ranks)}" for state, ranks in states.items())
    lines = [f"INCOMPLETE: {text}" for text in (ranks, missing_parts) if text]
    if n_dropped:
        lines.append(f"{count(n_dropped, 'event')} dropped: the disk was full")
    if n_backwards:
        lines.append(f"{count(n_backwards, 'event')} ending before their begin")
    return [Fact("", line, alarm=True) for line in lines]


def summary(rows: list[Result], keys: Sequence[str]) -> View:
    texts = [Column("size" if key == "size_bin" else key, [row[key] for row in rows],
                    nbytes if key == "size_bin" else str) for key in keys]  # fmt: skip
    return View((), [Grid([*texts, *_times(rows, "median", "p99", "total"),
                           Column("sent", [row["nbytes_sent"] for row in rows], nbytes)], len(keys), 100)])  # fmt: skip


def phases(rows: list[Result], wide: bool = False) -> View:
    if not rows:
        return View([Fact("phases", "none")])
    columns = [Column("phase", [row["kind"] for row in rows]),
               *_times(rows, "median", "p99", *["max"] * wide, "total"),
               Column("share", [row["share"] for row in rows], percent),
               *(Column(title, [row[name] for row in rows], nbytes)
                 for title, name in [("sent", "nbytes_sent"), ("received", "nbytes_recv")][: 1 + wide])]  # fmt: skip
    return View([Fact("phases", "one event may lie in another: shares need not add up")], [Grid(columns, most=100)])


def _times(rows: list[Result], *names: str) -> list[Column]:
    return [Column("count", [row["count"] for row in rows]),
            *(Column(name, [row[name] for row in rows], time_of) for name in names)]


def traffic(result: Result) -> View:
    if not result["kind"]:
        return View(())
    rate, compared = result["compression_rate"], ""
    if rate:
        compared = ", as much as" if 0.99 < rate < 1.01 else \
            f", {digits(rate, 3)} x less than" if rate > 1 else f", {digits(1 / rate, 3)} x more than"
        compared += " a dense all-reduce"
    each = result["nbytes_sent_per_rank_and_step"]
    sent = f"{nbytes(result['nbytes_sent'])} in all" if not each else f"{nbytes(each)} per rank and step"
    return View([Fact("sent", f"sends {sent}{compared}")])


def imbalance(result: Result) -> View:
    if not result["kind"]:
        return View(())
    wait = f"the last rank comes {duration(result['median_wait'])} after the median one"
    facts = [Fact("imbalance", f"at {result['kind']} {wait} ({_clocks(result['clock_uncertainty'])})")]
    if not result["significant"]:
        return View([*facts, Fact("", "no rank is later than the others by more than the clocks resolve")])
    late = sorted(((value, rank) for rank, value in enumerate(result["lateness"]) if value is not None), reverse=True)
    named = ", ".join(f"{rank}: {duration(value)}" for value, rank in late[:_MOST_RANKS])
    return View([*facts, Fact("", f"median lateness of rank {named}")])


def _clocks(uncertainty: float) -> str:
    return f"clocks known to {duration(uncertainty)}" if uncertainty else "all ranks read one clock"


def metrics(result: dict[str, Result]) -> View:
    courses = list(result.values())
    columns = [Column("metric", list(result)), Column("steps", [len(course["steps"]) for course in courses]),
               *(Column(name, [course[name] for course in courses], _number) for name in ("first", "last", "min")),
               Column("course", [course["values"] for course in courses], sparkline)]  # fmt: skip
    return View((), [Grid(columns, most=100)] if courses else ())


# -- analyses


def steps(result: Result) -> View:
    if not result["count"]:
        return View([Fact("steps", "no step was recorded")])
    times = ", ".join(f"{name} {duration(result[name])}" for name in ("median", "p99", "max", "first"))
    facts, table = [Fact("steps", f"{count(result['count'], 'step')}: {times}")], result.get("steps")
    if table is None:  # the short form in a report
        return View(facts)
    if result["drift"] is not None:
        change = (f"{result['drift']:+.1%} of the median step from the first third to the last "
                  f"(noise {result['drift_noise']:.1%})")
        drift = f"the steps drift: {change}" if result["drifts"] else f"no drift beyond the noise: {change}"
        facts.append(Fact("drift", drift))
    facts.append(Fact("course", sparkline(table["duration"].tolist())))
    columns: Columns = [
        ("longest steps", "step", str), ("duration", "duration", time_of), ("median rank", "median_rank", time_of),
        ("slowest", "slowest_rank", str),
        *((name, name, time_of) for name in ("compute", "compression", "communication", "other")),
    ]  # fmt: skip
    return View(facts, [_grid(table, columns, order=np.argsort(-table["duration"], kind="stable")[:20])])


def breakdown(result: Result) -> View:
    kinds = _grid(result["overall"], [
        ("phase", "kind", str), ("class", "class", str), ("share", "share", percent), ("total", "time", time_of),
        ("mean rank", "mean", time_of), ("least", "min", time_of), ("most", "max", time_of),
        ("of rank", "slowest_rank", str), ("cv", "cv", percent)], 2)  # fmt: skip
    table, span = result["ranks"], np.maximum(result["ranks"]["span"], 1)
    names = [name for name in table if name not in ("rank", "span")]
    shares = table | {name: table[name] / span for name in names}
    ranks = _grid(shares, [("rank", "rank", str), ("recorded", "span", time_of),
                           *((name, name, percent) for name in names)])  # fmt: skip
    return View((), [kinds, ranks])


def overlap(result: Result) -> View:
    if result["share"] is None:
        return View([Fact("overlap", "no communication was recorded")])
    whole, hidden, exposed = (duration(result[name]) for name in ("communication", "hidden", "exposed"))
    facts = [Fact("overlap", f"{result['share']:.1%} of the communication is hidden under work: {hidden} of {whole}; "
                             f"the ranks wait for {exposed}")]  # fmt: skip
    if result["enclosed"]:
        counted, block = ("hidden", "do not block") if result["enclosed_counts_as_hidden"] else ("exposed", "block")
        facts.append(Fact("", f"{duration(result['enclosed'])} lie wholly inside a computation and count as {counted}: "
                              f"right only if those calls {block}"))  # fmt: skip
    times = [(name, name, time_of) for name in ("communication", "hidden", "exposed", "enclosed")]
    table = result["ranks"]
    return View(facts, [_grid(table, [("rank", "rank", str), *times, ("hidden", "share", percent)],
                              order=np.argsort(-table["exposed"], kind="stable"))])  # fmt: skip


def collectives(result: Result) -> View:
    if not result["collectives"]:
        return View([Fact("collectives", "no communication of several ranks was recorded")])
    return View((), [_grid(result["collectives"], [
        *((name, name, str) for name in ("kind", "algo", "scheme")), ("size", "size_bin", nbytes),
        ("calls", "calls", str), ("time", "time", time_of), ("p90", "p90", time_of), ("slowest", "slowest", time_of),
        ("wait", "wait", time_of), ("sent", "sent", nbytes), ("algbw", "algbw", _gbs), ("busbw", "busbw", _gbs),
    ], 3)], clocks=result["clock_uncertainty"])  # fmt: skip


def stragglers(result: Result) -> View:
    if result["kind"] is None:
        return View([Fact("stragglers", "no communication of several ranks was recorded")])
    table, late = result["ranks"], result["late_ranks"]
    who = f"late: rank {some_ranges(late)}" if late else "no rank is late beyond clocks and noise"
    at = f"at {count(result['calls'], 'call')} of {result['kind']}"
    facts = [Fact("stragglers", f"{who}, {at} ({_clocks(result['clock_uncertainty'])})")]
    if result["absent"]:
        facts.append(Fact("absent", f"rank {some_ranges(result['absent'])} never came to one"))
    ranks = _grid(table | {"doubt": np.maximum(table["uncertainty"], table["noise"])}, [
        ("rank", "rank", str), ("node", "node", str), ("lateness", "lateness", time_of), ("+-", "doubt", time_of),
        ("p90", "p90", time_of), ("late to", "late", percent), ("last at", "last", percent),
        ("delayed all by", "caused", time_of),
    ], order=np.lexsort((-table["lateness"], ~table["significant"]))[:20])  # fmt: skip
    kinds = _grid(result["kinds"], [("kind", "kind", str), ("calls", "calls", str), ("median wait", "wait", time_of),
                                    ("all waits", "total_wait", time_of)])  # fmt: skip
    return View(facts, [ranks, kinds], clocks=result["clock_uncertainty"])


def spikes(result: Result) -> View:
    if not result["steps"]:
        return View([Fact("spikes", "no step was recorded")])
    limit = f"(above {duration(result['limit'])})"
    found = f"{result['count'] or 'none'} of {count(result['steps'], 'step')}"
    facts = [Fact("spikes", f"{found} took much longer than the median {limit}")]
    if not result["count"]:
        return View(facts)
    table = result["spikes"]
    causes = zip(table["cause"].tolist(), table["rank"].tolist(), table["ranks"].tolist(), strict=True)
    made_by = np.array([f"rank {rank}" if cause == "rank" else f"{ranks} ranks, most rank {rank}" if cause == "ranks"
                        else cause for cause, rank, ranks in causes])  # fmt: skip
    return View(facts, [_grid(table | {"made_by": made_by}, [
        ("step", "step", str), ("made by", "made_by", str), ("phase", "phase", str), ("duration", "duration", time_of),
        ("x median", "ratio", _gbs), ("excess", "excess", time_of), ("of the phase", "phase_excess", time_of)], 3)])


def _pays_below(rate: float) -> str:
    return "never" if rate == 0 else f"{number(rate)} GB/s" if is_known(rate) else "-"


_SCHEME_ROWS: Columns = (
    ("was it worth it?", "worth", str), ("steps", "steps", str), ("dense bytes", "dense", nbytes),
    ("sent by the busiest", "sent", nbytes), ("less by", "ratio", lambda x: f"{number(x)} x" if is_known(x) else "-"),
    ("density", "density", number),
    ("time of the step", "time", time_of), ("compressing", "compression", time_of),
    ("compressing, hidden", "hidden", time_of), ("communicating", "communication", time_of),
    ("both, without waiting", "cost", time_of), ("dense would take", "dense_time", time_of),
    ("according to", "basis", lambda x: x or "-"), ("pays below", "break_even", _pays_below),
)  # fmt: skip


def codec(result: Result) -> View:
    schemes = result["schemes"]
    if not schemes:
        return View([Fact("note", result["reason"])])
    facts = []
    for row, name in enumerate(schemes["scheme"].tolist()):
        worth, speedup, basis, even = (schemes[key][row] for key in ("worth", "speedup", "basis", "break_even"))
        if basis != "itself dense":
            against = f": {number(speedup)} times as fast as dense ({basis})" if is_known(speedup) else ""
            pays = "; pays on no link: it saves no bytes" if even == 0 else \
                f"; pays on links slower than {number(even)} GB/s" if is_known(even) else ""
            facts.append(Fact("worth it", f"{name}: {worth}{against}{pays}"))
    if result["reason"]:
        facts.append(Fact("note", result["reason"]))
    columns = [Column("per rank and step", [title for title, _, _ in _SCHEME_ROWS])]
    for row, name in enumerate(schemes["scheme"].tolist()):
        columns.append(Column(name, [show(schemes[key][row]) for _, key, show in _SCHEME_ROWS]))
    return View(facts, [Grid(columns)])


def measures(result: Result) -> View:
    notes = [Fact("note", remark) for remark in result["remarks"]]
    if not result["metrics"]:
        return View((), notes=notes)
    table = result["metrics"]
    courses = [[x for x in result["steps"][name].tolist() if x == x] for name in table["metric"]]
    numbers = [(name, name, _number) for name in ("first", "last", "least", "greatest")]
    grid = _grid(table, [("metric", "metric", str), ("steps", "steps", str), *numbers, ("change", "change", percent)])
    return View((), [grid._replace(columns=[*grid.columns, Column("course", courses, sparkline)])], notes)


def bandwidth(result: Result) -> View:
    if not len(result["bandwidth"]["algo"]):
        return View([Fact("bandwidth", "no dense all-reduce with its size was recorded")])
    return View((), [
        _grid(result["bandwidth"], [("algorithm", "algo", str), ("size", "nbytes", nbytes), ("calls", "calls", str),
              ("time", "time", time_of), ("p10 GB/s", "p10", _gbs), ("median", "median", _gbs), ("p90", "p90", _gbs)]),
        _grid(result["model"], [("model", "algo", str), ("latency", "latency", time_of), ("busbw", "busbw", _gbs),
                                ("half of it at", "half_size", nbytes)]),
    ])  # fmt: skip


_POP = (
    ("parallel efficiency", "parallel_efficiency", "useful time of the mean rank / run time"),
    ("  load balance", "load_balance", "mean / most useful time of a rank"),
    ("  communication efficiency", "communication_efficiency", "most useful time of a rank / run time"),
    ("    serialisation", "serialisation", "lost by ranks waiting for each other even on an ideal network"),
    ("    transfer", "transfer", "lost to the network: ideal / run time"),
    ("computation share", "computation_share", "of the useful time, not compression"),
)


def efficiency(result: Result) -> View:
    if not result["steps"]:
        return View([Fact("efficiency", result["reason"])])
    size = f"{count(result['steps'], 'step')} on {count(len(result['ranks']['rank']), 'rank')}"
    whole, balance, communication = (percent(result[name]) for _, name, _ in _POP[:3])
    product = f"parallel efficiency {whole} = load balance {balance} x communication efficiency {communication}"
    grid = Grid([Column("metric", [title for title, _, _ in _POP]), Column("meaning", [text for *_, text in _POP]),
                 Column("value", [result[name] for _, name, _ in _POP], percent)], 2)  # fmt: skip
    notes = [Fact("note", result["reason"])] if result["reason"] else []
    return View([Fact("run time", f"{duration(result['time'])} of {size}"), Fact("efficiency", product)], [grid], notes)


def diff(result: Result) -> View:
    facts = [Fact("steps", f"{result['steps_a']} in A, {result['steps_b']} in B"),
             Fact("sent", f"{nbytes(result['bytes_a'])} in A, {nbytes(result['bytes_b'])} in B, per rank and step"),
             *(Fact("differs", f"{name}: A {a}, B {b}") for name, (a, b) in result["different"].items())]
    if not result["phases"]:
        return View([*facts, Fact("note", "no step to compare after the first --skip steps (default 1)")])
    grid = _grid(result["phases"], [
        ("phase", "kind", str), ("B is", "verdict", str), ("A", "a", time_of), ("B", "b", time_of),
        ("B - A", "change", time_of), ("noise", "noise", time_of), ("B / A", "ratio", _gbs)], 2)  # fmt: skip
    note = "the noise is that within these launches: one launch each says little about the next"
    return View(facts, [grid], [Fact("note", note)])


def hang(result: Result) -> View:
    table, suspects = result["ranks"], result["suspects"]
    facts = [Fact("SUSPECT", f"rank {some_ranges(suspects)}: {result['why']}", alarm=True) if suspects
             else Fact("hang", result["why"]),
             Fact("last step", f"{result['last_step']} finished by all ranks, {result['furthest_step']} by some")]
    doing = [f"{kind} of step {step}" if kind and step >= 0 else kind or "not known"
             for kind, step in zip(table["in"].tolist(), table["in_step"].tolist(), strict=True)]  # fmt: skip
    grid = _grid(table | {"doing": np.array(doing)}, [
        ("rank", "rank", str), ("is in", "doing", str), ("status", "status", str), ("last step", "step", str),
        ("last event", "last", str), ("calls", "calls", str),
        ("last record", "behind", lambda ns: f"{duration(ns)} before the last of all" if is_known(ns) else "none"),
    ], 7, np.lexsort((table["rank"], ~np.isin(table["rank"], suspects))))  # fmt: skip
    return View(facts, [grid], clocks=result["clock_uncertainty"])
