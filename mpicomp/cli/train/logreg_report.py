"""Report of ``mpicomp train logreg``: progress lines, the curve and the totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ..._util.plurals import count
from ..console import Column, print_json, print_table
from .options import thinned

if TYPE_CHECKING:
    from ...apps.logreg_result import Evaluation, Result

TABLE_ROWS = 12  # of the curve; --json has every point
COLUMNS = [Column(title) for title in ("step", "epoch", "bits", "gap", "density", "total error", "memory norm")]


def show(result: Result, as_json: bool, app: str = "logreg", **more: object) -> None:
    """Print a finished run; ``more`` is added to the JSON document."""
    if as_json:
        print_json({"format": f"mpicomp-train-{app}", "version": 1, **result.to_dict(), **more})
    else:
        _print(result)


def line(evaluation: Evaluation, steps: int) -> str:
    return f"step {evaluation.step}/{steps}: gap {evaluation.gap:.4g} after {evaluation.bits:.4g} bits per worker"


def _print(result: Result) -> None:
    """Print the problem, the curve and the totals, for people."""
    problem, facts, seconds = result.problem, result.data, result.seconds
    click.echo(
        f"{facts['name']}, {count(facts['rows'], 'row')}, {count(facts['features'], 'feature')}\n"
        f"{count(facts['workers'], 'worker')} on {count(facts['ranks'], 'rank')}, "
        f"scheme {result.settings.scheme}, seed {result.settings.seed}\n"
        f"L {problem.smoothness:.6f}  l2 {problem.l2:.6g}  gamma {problem.step_size:.7e}\n"
        f"f* {problem.f_star:.9f}  f(x0) {result.f_start:.9f}\n"
    )
    print_table(COLUMNS, _rows(thinned(result.series, TABLE_ROWS)), "bits: sent by a worker so far; gap: f(x) - f*")
    if result.targets:
        click.echo()
        print_table(COLUMNS, _rows(result.targets), "the first step that reached each --target-bits")
    click.echo(
        f"\n{count(result.steps, 'step')} in {seconds['steps']:.2f} s, "
        f"{1e3 * seconds['steps'] / result.steps:.2f} ms each; "
        f"minimum {seconds['minimum']:.2f} s, evaluations {seconds['evaluations']:.2f} s; "
        f"a rank sent {result.bytes_sent:,.0f} bytes through MPI on average"
    )


def _rows(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    return [
        [str(e.step), f"{e.epoch:.2f}", f"{e.bits:.4g}", f"{e.gap:.4g}", f"{e.density:.3e}",
         f"{e.total_error:.4g}", f"{e.memory_norm:.4g}"]
        for e in evaluations
    ]  # fmt: skip
