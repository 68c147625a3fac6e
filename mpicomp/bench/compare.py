"""A result against an earlier one, row by row, with the noise of both in mind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import InvalidArgument
from . import environment
from .rows import KEY, differing, label, micros


class Baseline:
    """The rows of an earlier run, or of several merged.

    A row has regressed where its median is more than ``percent`` above the baseline's *and* the noise does not explain
    it: the lower end of its 95 % confidence interval lies above the upper end of the baseline's. Of merged launches the
    fastest and the slowest launch take the place of these ends. Where rounds were too few for an interval, the
    fastest and the 90th percentile of the rounds do.
    """

    def __init__(self, document: dict[str, Any], percent: float, name: str) -> None:
        if not 0 <= percent < float("inf"):
            raise InvalidArgument(f"--max-regress must be a percentage from 0, got {percent:g}")
        self._percent, self.name = percent, name
        self._rows = {key(row): row for row in document["rows"]}

    def check_job(self, collective: str, n_ranks: int) -> None:
        """Raise InvalidArgument, before the work, where nothing could be compared."""
        kinds = {(row["collective"], row["n_ranks"]) for row in self._rows.values()}
        if (collective, n_ranks) not in kinds:
            had = "; ".join(f"{name} on {ranks} ranks" for name, ranks in sorted(kinds))
            raise InvalidArgument(f"--baseline {self.name} has {had or 'no rows'}, not {collective} on {n_ranks} ranks")

    def compare(self, rows: Iterable[dict[str, Any]]) -> None:
        """Set ``baseline_us``, ``change_pct`` and ``regressed`` of the rows that the baseline has, too."""
        for row in rows:
            before = self._rows.get(key(row))
            if before is None:
                continue
            change = 100 * (row["t_med_us"] / before["t_med_us"] - 1)
            beyond_noise = _low(row) > _high(before)
            row.update(baseline_us=before["t_med_us"], change_pct=change,
                       regressed=change > self._percent and beyond_noise)  # fmt: skip

    def verdict(self, document: dict[str, Any]) -> tuple[str, list[str]]:
        """One line on the whole comparison, and one for each row that has regressed.

        Raises InvalidArgument where no row could be compared: that must not look like good news.
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
            f"against {micros(row['baseline_us'])} us" for row in slower
        ]  # fmt: skip


def foreign_share(document: dict[str, Any]) -> float:
    """The share of the CPUs that others used, the worst of merged launches; 0 where it is not known."""
    noise = document.get("noise") or {}
    launches = [noise] if "foreign_cpu_share" in noise else noise.values()
    return max((one.get("foreign_cpu_share") or 0.0 for one in launches if isinstance(one, dict)), default=0.0)


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two rows the same measurement."""
    return tuple(row[name] for name in KEY)


def _low(row: dict[str, Any]) -> float:
    ends = (row["t_low_us"], row["ci_low_us"], row["t_min_us"], row["t_med_us"])
    return next(end for end in ends if end is not None)


def _high(row: dict[str, Any]) -> float:
    ends = (row["t_high_us"], row["ci_high_us"], row["t_p90_us"], row["t_med_us"])
    return next(end for end in ends if end is not None)
