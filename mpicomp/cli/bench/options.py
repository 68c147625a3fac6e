"""The options of ``mpicomp bench``: the names of nccl-tests where the meaning is the same."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from ... import allreduce
from ...bench import COLLECTIVES, plan
from ..config import config_option, for_this
from ..options import (
    OUTPUT,
    Choice,
    CommaList,
    Decorator,
    all_of,
    as_json,
    option,
    quiet,
    scheme_names,
    section,
    timeout,
)

PATH = click.Path()  # for completion; the code that uses a file checks it
FORMATS = ("table", "markdown", "csv", "jsonl", "json", "nccl", "osu")


class CollectiveName(Choice):
    """The collectives; completion also offers the subcommand."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [(name, one.summary) for name, one in COLLECTIVES.items()] + [("merge", "several launches, one table")]
        return [CompletionItem(name, help=text) for name, text in names if name.startswith(incomplete)]


def _names() -> list[str]:
    return [*allreduce.names(), *allreduce.LOSSY]


def dense_algorithms(text: str) -> Callable[..., Decorator]:
    """The option ``--algorithm`` with the given help."""
    return option("-a", "--algorithm", multiple=True, metavar="NAME,...", type=CommaList(_names), help=text)


def range_of_sizes(least: str | None, most: str | None) -> list[Callable[..., Decorator]]:
    """The options of a geometric range of sizes, with the defaults of a command (None: those of the collective)."""
    return [
        option("-b", "--min-bytes", "--minbytes", default=least, metavar="SIZE",
               help="Smallest size, with units K, M, G of 1024." + "  [default: 1K; schemes 1M]" * (least is None)),
        option("-e", "--max-bytes", "--maxbytes", default=most, metavar="SIZE",
               help="Largest size." + "  [default: 64M; schemes 16M]" * (most is None)),
        option("-f", "--step-factor", "--stepfactor", default=4.0, help="Factor from one size to the next."),
    ]  # fmt: skip


what_to_measure = all_of(
    click.argument("collective", type=CollectiveName(list(COLLECTIVES)), default="allreduce", metavar="COLLECTIVE"),
    section(
        "Implementations",
        dense_algorithms("Dense algorithms; the first is the baseline of the ratio.  int8, int4 and fp8 are lossy.  "
                         "[default: all exact ones]"),
        option("-s", "--scheme", multiple=True, metavar="SCHEME,...", type=CommaList(scheme_names),
               help="Schemes, such as scalecom:chunk=112,topk:density=0.01 or all; see mpicomp schemes."),
        option("--bound", multiple=True, metavar="E,...",
               help="Also the error-bounded all-reduce, once per bound; --algorithm is then native,auto by default."),
        option("--relative", is_flag=True, help="Bounds are shares of the field's range: max - min over all ranks."),
    ),
    section(
        "Sizes",
        *range_of_sizes(None, None),
        option("-i", "--step-bytes", "--stepbytes", metavar="SIZE", help="Difference between sizes, not a factor."),
        option("--sizes", multiple=True, metavar="SIZE,...",
               help="Only these sizes.  All sizes are cut to whole elements, at least one."),
    ),
    section(
        "Data",
        option("-d", "--dtype", "--datatype", default="float32",
               type=Choice([*plan.DTYPES, *plan.ALIASES, plan.ALL]), metavar="NAME",
               help=f"Data type: {', '.join([*plan.DTYPES, *plan.ALIASES])}, or all, one after the other."),
        option("--op", default="sum", type=Choice(plan.OPS), help="Reduction."),
        option("-r", "--root", type=int, default=0, help="Root rank of bcast and first rank of pingpong."),
        option("--place", type=Choice(plan.PLACES), default=None,
               help="Result in a buffer of its own, or in the input's.  [default: out; format nccl: both]"),
        option("--device", type=Choice(plan.DEVICES), default="cpu",
               help="NumPy arrays, or CuPy arrays on one GPU per rank."),
        option("--data", metavar="FIELD",
               help=f"Field for --bound: {', '.join(plan.FIELDS)}, or FILE{plan.FILE}, whole if no size is given.  "
                    f"[default: {plan.FIELDS[0]}]"),
        option("--seed", type=int, default=1, help="Seed of the data and of the order."),
    ),
)  # fmt: skip

timing = section(
    "Timing",
    option("-w", "--warmup", "--warmup_iters", type=int, default=10,
           help="Maximum number of untimed warm-up rounds per size."),
    option("-n", "--iters", type=int, help="Number of timed rounds.  [default: decided by the next three options]"),
    option("--target-ci", type=float, metavar="PERCENT",
           help="Stop if half the 95 % confidence interval of every median is at most PERCENT of it."),
    option("--min-time", type=float, default=0.2,
           help="Without --target-ci: minimum seconds (or 1000 rounds) for which each implementation is timed."),
    option("--max-time", type=float, default=5.0, help="Maximum seconds per size, all implementations together."),
    option("-N", "--cycles", "--run_cycles", "cycles", type=int, default=1,
           help="Number of times everything is measured; each cycle has its own rows."),
    option("--agg-iters", "--agg_iters", type=int,
           help="Steps per barrier; their mean is one sample.  [default: 1; pingpong 20]"),
    option("--shuffle/--no-shuffle", default=True, help="Random or rotating order of implementations in every round."),
    option("-c", "--check", is_flag=False, flag_value=1, type=click.IntRange(min=0), default=1, metavar="[0|1]",
           help="Compare results with the exact ones."),
    option("--no-check", is_flag=True, help="Same as --check 0."),
    timeout,
)  # fmt: skip

output = section(
    "Output",
    option("--format", "layout", type=Choice(FORMATS), default="table", help="Form of the report."),
    as_json,
    option("-o", "--output", type=OUTPUT, metavar="FILE", help="Also write the results to FILE: .json, .csv or .h5."),
    option("--plot", "picture", type=OUTPUT, metavar="FILE", help="Draw bandwidth and time: .png, .svg or .pdf."),
    option("--force", is_flag=True, help="Replace existing files."),
)  # fmt: skip

comparison = section(
    "Comparison",
    option("--baseline", type=PATH, metavar="FILE",
           help="Compare with an earlier --output; exit with code 3 if this run is slower."),
    option("--max-regress", default="10%", metavar="PERCENT",
           help="Slowdown against the baseline that is still accepted."),
)  # fmt: skip

running = all_of(
    section(
        "Run",
        option("--dry-run", is_flag=True, help="Print the plan with its memory and time, and stop."),
        quiet,
    ),
    config_option(for_this("bench")),
)
