"""The columns of results: types, units and meanings, for rows in memory and in files."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypedDict, cast, get_args, get_origin, get_type_hints

from .environment import Rank


class Row(TypedDict):
    """Every column of a report, in the order of files; None if it does not apply."""

    collective: str
    algorithm: str | None
    scheme: str | None
    part: str
    dtype: str
    op: str | None
    root: int
    place: str | None
    device: str
    nbytes: int
    count: int
    n_ranks: int
    cycle: int | None
    bound: float | None
    relative: bool | None
    data: str | None
    t_med_us: float
    ci_low_us: float | None
    ci_high_us: float | None
    t_min_us: float
    t_mean_us: float
    t_avg_us: float
    t_p90_us: float
    t_p99_us: float
    t_max_us: float
    spread_pct: float
    cv_pct: float
    iters: int
    warmup: int
    algbw_gbs: float
    busbw_gbs: float | None
    wire_bytes: int
    wire_modelled: bool
    ratio: float | None
    density: float | None
    t_local_us: float | None
    t_compress_us: float | None
    t_decompress_us: float | None
    break_even_gbs: float | None
    t_phase_us: dict[str, float] | None
    ran: str | None
    reason: str | None
    max_error: float | None
    error_limit: float | None
    psnr_db: float | None
    vs: float | None
    n_wrong: int | None
    ok: bool | None
    launches: int | None
    t_low_us: float | None
    t_high_us: float | None
    baseline_us: float | None
    change_pct: float | None
    regressed: bool | None


class Field(NamedTuple):
    """The type of a column, its unit, its meaning if the name does not say it, and if a row may lack a value."""

    kind: type
    units: str
    meaning: str
    optional: bool


_UNITS = {  # by the end of a column's name
    "_us": "us", "_pct": "percent", "_gbs": "1e9 byte/s", "_db": "dB", "bytes": "byte",
}  # fmt: skip
_MEANINGS = {
    "collective": "the measured collective",
    "algorithm": "dense or error-bounded algorithm; none for a scheme",
    "scheme": "compression scheme; none for a dense algorithm",
    "part": "step: over all ranks; local: on every rank alone",
    "root": "-1 if there is none",
    "place": "out or in; none for a scheme",
    "nbytes": "dense bytes, which bandwidths count",
    "count": "elements of a vector, or of one rank's block",
    "cycle": "number of the cycle, from 1",
    "bound": "error bound as given; none for other collectives",
    "relative": "the bound is a share of the field's range",
    "data": "field of an error-bounded collective",
    "t_med_us": "median over rounds of the maximum over ranks",
    "ci_low_us": "lower end of the median's 95 % confidence interval",
    "ci_high_us": "upper end of it",
    "t_avg_us": "mean over rounds and ranks",
    "spread_pct": "middle half of the rounds over their median",
    "cv_pct": "standard deviation over mean",
    "wire_bytes": "bytes sent per step by the rank that sends most",
    "wire_modelled": "some of them by formula: inside a call of MPI's own",
    "ratio": "bytes of a bandwidth-optimal dense all-reduce over bytes sent",
    "density": "elements sent per rank over all elements",
    "t_local_us": "time per step that a rank computes",
    "break_even_gbs": "the scheme saves time on links slower than this",
    "t_phase_us": "median of every phase",
    "ran": "two_hops, or exact if codes would not be faster",
    "reason": "reason for exact",
    "max_error": "largest difference from the result in float64, after the timed rounds",
    "error_limit": "largest difference that the bound allows, without rounding to the dtype",
    "psnr_db": "range of the result over the root mean square of the differences",
    "vs": "speed relative to the first implementation",
    "n_wrong": "-1 if results were not checked",
    "launches": "number of launches whose median this row is",
    "t_low_us": "fastest launch's median",
    "t_high_us": "slowest launch's median",
    "change_pct": "against the baseline",
}


def _kind(hint: Any) -> type:
    """The type of a column's values other than None."""
    first = next(iter(get_args(hint)), hint)
    return cast(type, get_origin(first) or first)


FIELDS = {
    name: Field(_kind(hint), next((unit for end, unit in _UNITS.items() if name.endswith(end)), "1"),
                _MEANINGS.get(name, ""), type(None) in get_args(hint))
    for name, hint in get_type_hints(Row).items()
}  # fmt: skip
# The columns that identify a measurement.
KEY = ("collective", "algorithm", "scheme", "part", "dtype", "op", "root", "place", "device", "nbytes", "n_ranks",
       "cycle", "bound", "relative", "data")  # fmt: skip
key = itemgetter(*KEY)  # a hashable value


def full(row: Mapping[str, object]) -> Row:
    """The row with every column, in order."""
    return cast(Row, {name: row.get(name) for name in FIELDS})


class Document(TypedDict, total=False):
    """A run, or several merged launches (with ``sources``). CSV files have only format, version and rows."""

    format: str
    version: int
    time: str
    argv: list[str]
    config: dict[str, object]
    definition: str
    versions: dict[str, str | None]
    mpi: dict[str, str]
    seed: int
    ranks: list[Rank]
    environment: dict[str, str]
    noise: Mapping[str, Any]  # of a run; of merged launches one such mapping per file name
    sources: list[str]
    differences: list[str]
    rows: list[Row]
