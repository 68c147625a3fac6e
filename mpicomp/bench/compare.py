"""Comparison of a result with an earlier one, row by row, beyond the noise of both."""

from __future__ import annotations

from collections.abc import Iterable

from .._util.plurals import count
from ..errors import InvalidArgument
from . import environment
from .rows import differing, interval, label, micros
from .schema import Document, Row, key


class Baseline:
    """The rows of an earlier run, or of several merged.

    A row has regressed if its median is more than ``percent`` above the baseline's *and* the noise does not explain
    it: the lower end of its 95 % confidence interval is above the upper end of the baseline's. Merged launches have
    the fastest and the slowest launch as these ends; with too few rounds for an interval, the fastest round and the
    90th percentile.
    """

    def __init__(self, document: Document, percent: float, name: str) -> None:
        if not 0 <= percent < float("inf"):
            raise InvalidArgument(f"--max-regress must be a percentage from 0, got {percent:g}")
        self._percent, self.name = percent, name
        self._rows = {key(row): row for row in document["rows"]}

    def check_job(self, collective: str, n_ranks: int) -> None:
        """Raise InvalidArgument, before the work, if no row could be compared."""
        kinds = {(row["collective"], row["n_ranks"]) for row in self._rows.values()}
        if (collective, n_ranks) not in kinds:
            had = "; ".join(f"{name} on {count(ranks, 'rank')}" for name, ranks in sorted(kinds))
            raise InvalidArgument(f"--baseline {self.name} has {had or 'no rows'}, not {collective} on "
                                  f"{count(n_ranks, 'rank')}")

    def compare(self, rows: Iterable[Row]) -> None:
        """Set ``baseline_us``, ``change_pct`` and ``regressed`` of the rows that are in the baseline."""
        for row in rows:
            before = self._rows.get(key(row))
            if before is None:
                continue
            change = 100 * (row["t_med_us"] / before["t_med_us"] - 1)
            beyond_noise = _low(row) > _high(before)
            row["baseline_us"], row["change_pct"] = before["t_med_us"], change
            row["regressed"] = change > self._percent and beyond_noise

    def verdict(self, document: Document) -> tuple[str, list[str]]:
        """One line on the whole comparison, and one per row that has regressed.

        Raises InvalidArgument if no row could be compared: that must not look like good news.
        """
        rows = document["rows"]
        compared = [row for row in rows if row["baseline_us"] is not None]
        if not compared:
            raise InvalidArgument(f"{self.name} has no row of this measurement: the same collective, sizes, dtype, op, "
                                  "place, number of ranks and implementations are compared")  # fmt: skip
        slower = [row for row in compared if row["regressed"]]
        line = (f"{len(compared)} of {len(rows)} rows compared with {self.name}: {len(slower) or 'none'} slower by "
                f"more than {self._percent:g} % and more than the noise")
        foreign = foreign_share(document)
        if foreign > environment.FOREIGN_LIMIT:
            line += f" (DOUBTFUL: other processes used {foreign:.0%} of the CPUs)"
        differ = differing(rows)
        return line, [
            f"{label(row, differ)} at {row['nbytes']} bytes: {micros(row['t_med_us'])} us, {row['change_pct']:+.0f} % "
            f"against {micros(row['baseline_us'] or 0)} us" for row in slower
        ]  # fmt: skip


def foreign_share(document: Document) -> float:
    """The share of the CPUs that others used, the worst of merged launches; 0 if it is unknown."""
    noise = document.get("noise") or {}
    launches = [noise] if "foreign_cpu_share" in noise else noise.values()
    return max((one.get("foreign_cpu_share") or 0.0 for one in launches if isinstance(one, dict)), default=0.0)


def _low(row: Row) -> float:
    return next(end for end in (interval(row)[0], row["t_min_us"], row["t_med_us"]) if end is not None)


def _high(row: Row) -> float:
    return next(end for end in (interval(row)[1], row["t_p90_us"], row["t_med_us"]) if end is not None)
