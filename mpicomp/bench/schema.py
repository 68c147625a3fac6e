"""The columns of results: types, units and meanings, for rows in memory and in files."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypedDict, cast, get_args, get_origin, get_type_hints

from .environment import Rank


class Row(TypedDict):
    """Every column of a report, with its meaning, in the order of files; None if it does not apply."""

    collective: Annotated[str, "the measured collective"]
    algorithm: Annotated[str | None, "dense or error-bounded algorithm; none for a scheme"]
    scheme: Annotated[str | None, "compression scheme; none for a dense algorithm"]
    part: Annotated[str, "step: over all ranks; local: on every rank alone"]
    dtype: str
    op: str | None
    root: Annotated[int, "-1 if there is none"]
    place: Annotated[str | None, "out or in; none for a scheme"]
    device: str
    nbytes: Annotated[int, "dense bytes, which bandwidths count"]
    count: Annotated[int, "elements of a vector, or of one rank's block"]
    n_ranks: int
    cycle: Annotated[int | None, "number of the cycle, from 1"]
    bound: Annotated[float | None, "error bound as given; none for other collectives"]
    relative: Annotated[bool | None, "the bound is a share of the field's range"]
    data: Annotated[str | None, "field of an error-bounded collective"]
    t_med_us: Annotated[float, "median over rounds of the maximum over ranks"]
    ci_low_us: Annotated[float | None, "lower end of the median's 95 % confidence interval"]
    ci_high_us: Annotated[float | None, "upper end of it"]
    t_min_us: float
    t_mean_us: float
    t_avg_us: Annotated[float, "mean over rounds and ranks"]
    t_p90_us: float
    t_p99_us: float
    t_max_us: float
    spread_pct: Annotated[float, "middle half of the rounds over their median"]
    cv_pct: Annotated[float, "standard deviation over mean"]
    iters: int
    warmup: int
    algbw_gbs: float
    busbw_gbs: float | None
    wire_bytes: Annotated[int, "bytes sent per step by the rank that sends most"]
    wire_modelled: Annotated[bool, "some of them by formula: inside a call of MPI's own"]
    ratio: Annotated[float | None, "bytes of a bandwidth-optimal dense all-reduce over bytes sent"]
    density: Annotated[float | None, "elements sent per rank over all elements"]
    t_local_us: Annotated[float | None, "time per step that a rank computes"]
    t_compress_us: float | None
    t_decompress_us: float | None
    break_even_gbs: Annotated[float | None, "the scheme saves time on links slower than this"]
    t_phase_us: Annotated[dict[str, float] | None, "median of every phase"]
    ran: Annotated[str | None, "two_hops, or exact if codes would not be faster"]
    reason: Annotated[str | None, "reason for exact"]
    max_error: Annotated[float | None, "largest difference from the result in float64, after the timed rounds"]
    error_limit: Annotated[float | None, "largest difference that the bound allows, without rounding to the dtype"]
    psnr_db: Annotated[float | None, "range of the result over the root mean square of the differences"]
    vs: Annotated[float | None, "speed relative to the first implementation"]
    n_wrong: Annotated[int | None, "-1 if results were not checked"]
    ok: bool | None
    launches: Annotated[int | None, "number of launches whose median this row is"]
    t_low_us: Annotated[float | None, "fastest launch's median"]
    t_high_us: Annotated[float | None, "slowest launch's median"]
    baseline_us: float | None
    change_pct: Annotated[float | None, "against the baseline"]
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


def _field(name: str, hint: Any) -> Field:
    """The field of a column with the given type, annotated or not."""
    hint, meaning = get_args(hint) if get_origin(hint) is Annotated else (hint, "")
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    units = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "1")
    return Field(get_origin(kinds[0]) or kinds[0], units, meaning, NoneType in kinds)


FIELDS = {name: _field(name, hint) for name, hint in get_type_hints(Row, include_extras=True).items()}
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
