"""The options of ``mpicomp bench``: nccl-tests' letters and names where the meaning is the same."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from ... import allreduce
from ...bench import COLLECTIVES, plan
from ..config import config_option, for_this
from ..options import all_of

PATH = click.Path()  # for completion; what is wrong with a file is said where it is used
FORMATS = ("table", "csv", "jsonl", "json", "nccl", "osu")


class Listed(click.ParamType):  # type: ignore[type-arg]  # older ones of click cannot be subscripted
    """A comma-separated list, completed name by name."""

    name = "list"

    def __init__(self, names: Callable[[], list[str]]) -> None:
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + name) for name in self._names() if name.startswith(last)]


class What(click.Choice):  # type: ignore[type-arg]  # as above
    """The collectives; completion also offers the subcommand."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [(name, one.summary) for name, one in COLLECTIVES.items()] + [("merge", "several launches, one table")]
        return [CompletionItem(name, help=text) for name, text in names if name.startswith(incomplete)]


def _schemes() -> list[str]:
    from ...schemes.registry import names

    return names()


what_to_measure = all_of(
    click.argument("collective", type=What(list(COLLECTIVES)), default="allreduce", metavar="COLLECTIVE"),
    click.option("-a", "--algorithm", multiple=True, metavar="NAME,...", type=Listed(allreduce.names),
                 help="Algorithms; the first is the baseline of the ratio.  [default: all there are]"),
    click.option("-s", "--scheme", multiple=True, metavar="SCHEME,...", type=Listed(_schemes),
                 help="Schemes, such as scalecom:chunk=112,topk:density=0.01 or all; see mpicomp schemes."),
    click.option("-b", "--min-bytes", "--minbytes", metavar="SIZE",
                 help="Smallest size, with units K, M, G of 1024.  [default: 1K; schemes 1M]"),
    click.option("-e", "--max-bytes", "--maxbytes", metavar="SIZE",
                 help="Largest size.  [default: 64M; schemes 16M]"),
    click.option("-f", "--step-factor", "--stepfactor", default=4.0, show_default=True,
                 help="From one size to the next."),
    click.option("-i", "--step-bytes", "--stepbytes", metavar="SIZE", help="Add this instead of multiplying."),
    click.option("--sizes", multiple=True, metavar="SIZE,...",
                 help="Just these sizes.  All are cut to whole elements, at least one."),
    click.option("-d", "--dtype", "--datatype", default="float32", show_default=True,
                 type=click.Choice([*plan.DTYPES, *plan.ALIASES, plan.ALL]), metavar="NAME",
                 help=f"{', '.join([*plan.DTYPES, *plan.ALIASES])}, or all, one after the other."),
    click.option("-o", "--op", default="sum", show_default=True, metavar="[sum|prod|min|max|avg]",
                 help="Reduction.  (-o FILE still is --output FILE.)"),
    click.option("-r", "--root", type=int, default=0, show_default=True,
                 help="Of bcast; the rank that begins a pingpong."),
    click.option("--place", type=click.Choice(plan.PLACES), default=None,
                 help="Result in a buffer of its own, or in that of the input.  [default: out; nccl: both]"),
    click.option("--device", type=click.Choice(plan.DEVICES), default="cpu", show_default=True,
                 help="NumPy arrays, or CuPy arrays on a GPU for each rank."),
    click.option("--seed", type=int, default=1, show_default=True, help="Of the data and of the order."),
)  # fmt: skip

how_long = all_of(
    click.option("-w", "--warmup", "--warmup-iters", "--warmup_iters", type=int, default=10, show_default=True,
                 help="Untimed rounds before each size, at most."),
    click.option("-n", "--iters", type=int, help="Timed rounds; without it by the next three."),
    click.option("--target-ci", type=float, metavar="PERCENT",
                 help="Stop once every median is known this well (95 % confidence, half the interval)."),
    click.option("--min-time", type=float, default=0.2, show_default=True,
                 help="Without it: seconds each implementation is timed, at least, or 1000 rounds."),
    click.option("--max-time", type=float, default=5.0, show_default=True,
                 help="Seconds for a size, all implementations together."),
    click.option("-N", "--cycles", "--run-cycles", "--run_cycles", "cycles", type=int, default=1, show_default=True,
                 help="Measure everything so often, cycle after cycle, in rows of their own."),
    click.option("-m", "--agg-iters", "--agg_iters", type=int,
                 help="Steps behind one barrier, averaged.  [default: 1; pingpong 20]"),
    click.option("--shuffle/--no-shuffle", default=True, show_default=True,
                 help="A random order of implementations in every round, or a rotating one."),
    click.option("-c", "--check", is_flag=False, flag_value=1, type=click.IntRange(min=0), default=1, metavar="[0|1]",
                 show_default=True, help="Compare results with the exact ones."),
    click.option("--no-check", is_flag=True, help="The same as --check 0."),
    click.option("-T", "--timeout", type=float, metavar="S",
                 help="End the job (exit 124) when a step takes longer; 0: never."),
)  # fmt: skip

results = all_of(
    click.option("--format", "layout", type=click.Choice(FORMATS), default="table", show_default=True,
                 help="Of what is printed."),
    click.option("--json", "as_json", is_flag=True, help="The same as --format json."),
    click.option("-J", "--output", type=PATH, metavar="FILE", help="Write FILE, too: .json, .csv or .h5."),
    click.option("--plot", "picture", type=PATH, metavar="FILE", help="Draw bandwidth and time: .png, .svg or .pdf."),
    click.option("--force", is_flag=True, help="Replace files that exist."),
    click.option("--baseline", type=PATH, metavar="FILE", help="Compare with an earlier --output; exit 3 if slower."),
    click.option("--max-regress", default="10%", show_default=True, metavar="PERCENT",
                 help="How much slower than the baseline is too slow."),
)  # fmt: skip

how_to_run = all_of(
    click.option("--dry-run", is_flag=True, help="Say what would be measured, with memory and time, and stop."),
    click.option("-q", "--quiet", is_flag=True, help="No progress on stderr."),
    config_option(for_this("bench")),
)
