"""Shared parts of the training commands: options, trace, checkpoints, stop signals, exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ... import allreduce
from ..._util.atomic_files import refuse_inputs
from ...comm.safety.collective_errors import run_collectively
from ..console import SteadyProgress
from ..options import OUTPUT, Choice, Decorator, all_of, as_json, option, section
from ..outcome import ExitCode
from .signals import StopSignals

if TYPE_CHECKING:
    from ...apps.checkpoints import Keeper
    from ...comm.comm import Comm
    from ...trace import NullRecorder, Recorder

T = TypeVar("T")
IMAGES = ("Folder with the four IDX files of MNIST or Fashion-MNIST (.gz or not), or with CIFAR-10's binary version, "
          "or with one folder of JPEG files per class; a .npz archive of JPEG images; or "
          "synthetic:train=2000,test=500,channels=3.")


def data(text: str, metavar: str = "PATH") -> Callable[..., Decorator]:
    """The option ``--data``, whose absence is an error with a suggestion to start without any file."""

    def required(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is None and not ctx.resilient_parsing:
            raise click.MissingParameter(f"Give {metavar}, or try it without a file: --data synthetic", ctx, param)
        return value

    return option("--data", "source", callback=required, metavar=metavar, help=f"{text}  [required]")


def training(epochs: float) -> Decorator:
    """Options of every app; the type of the default number of ``epochs`` is that of the option."""
    return section(
        "Training",
        option("--workers", type=int, metavar="N",
               help="Virtual workers over all ranks, each with its own shard and error memory.  "
                    "[default: one per rank]"),
        option("--epochs", type=type(epochs), default=epochs, help="Passes over the data."),
        option("--scheme", default="dense", metavar="NAME:OPTION=VALUE,...",
               help="Compression scheme, see mpicomp schemes."),
        option("--algorithm", type=Choice(allreduce.names()), default="auto",
               help="Dense all-reduce under the scheme."),
        option("--seed", type=int, default=0, help="Seed of all random numbers."),
    )  # fmt: skip


recording = all_of(
    section(
        "Checkpoints",
        option("--checkpoint", type=OUTPUT, metavar="DIR",
               help="Save checkpoints in this folder: at the end, and when SIGUSR1 or SIGTERM stops the run "
                    f"(exit code {ExitCode.STOPPED:d})."),
        option("--checkpoint-every", type=int, metavar="STEPS", help="Also save one every STEPS steps."),
        option("--resume", is_flag=True, help="Resume from the newest complete checkpoint, if there is one."),
    ),
    section(
        "Output",
        option("--trace", type=OUTPUT, metavar="FILE", help="Record every step in this HDF5 file, for mpicomp trace."),
        option("--force", is_flag=True, help="Replace existing output files, but no checkpoint."),
        as_json,
    ),
)  # fmt: skip


class Files(NamedTuple):
    """The values of the options of `recording`."""

    checkpoint: str | None
    checkpoint_every: int | None
    resume: bool
    trace: str | None
    force: bool
    as_json: bool


def split(options: Mapping[str, Any]) -> tuple[Files, dict[str, Any]]:
    """The values of `recording`, and all others: those of an app's settings."""
    others = {name: value for name, value in options.items() if name not in Files._fields}
    return Files(*(options[name] for name in Files._fields)), others


SGD_HELP = "sgd:momentum=0.9; plain sgd if the scheme has momentum"


def looping_with(lr: float = 0.05, batch: int = 32, clip: float = 0.0, optimizer: str | None = None) -> Decorator:
    """Options of the common loop, with an app's own defaults."""
    return all_of(
        section(
            "Optimization",
            option("--batch", type=int, default=batch, help="Rows per worker and step."),
            option("--optimizer", metavar="NAME:OPTION=VALUE,...", default=optimizer, show_default=False,
                   help="sgd, adam, lars or lamb; onebit-adam and zero-one-adam exchange their momentum by one bit per "
                        "element, and --scheme sends the gradients of their warm-up."
                        f"  [default: {optimizer or SGD_HELP}]"),
            option("--lr", type=float, default=lr, help="Learning rate."),
            option("--rate-factor", is_flag=True,
                   help="Multiply it by the factor that the scheme proposes under Adam (see mpicomp schemes NAME)."),
            option("--schedule", default="constant", metavar="NAME:OPTION=VALUE,...",
                   help="Schedule of the learning rate: constant, step:at=2+4,factor=0.1 (epochs), cosine."),
            option("--warmup", type=float, default=0.0, metavar="EPOCHS",
                   help="Epochs in which the learning rate rises to --lr, from --lr over the number of workers."),
            option("--compress-warmup", type=float, default=0.0, metavar="EPOCHS",
                   help="Epochs in which the density falls to the scheme's own, in the scheme's stages."),
            option("--sam", type=float, default=0.0, metavar="RHO",
                   help="Sharpness-aware minimisation within each worker's batch; 0 is off."),
            option("--clip", type=float, default=clip, metavar="NORM",
                   help="Clip each worker's gradient to this norm over the root of the number of workers, before "
                        "compression; 0 is off."),
        ),
        section(
            "Outer steps",
            option("--outer", type=click.Choice(["diloco"]),
                   help="Let each rank step by its own gradients, and average how far the ranks went every --every "
                        "steps by the scheme.  [default: average the gradients in every step]"),
            option("--every", type=int, default=30, metavar="STEPS", help="Steps between two exchanges of a fragment."),
            option("--fragments", type=int, default=1, metavar="N",
                   help="Parts of the model that are exchanged in turn."),
            option("--delay", type=int, default=0, metavar="STEPS", help="Steps done beside an exchange."),
            option("--outer-lr", type=float, default=0.7, metavar="RATE", help="Learning rate of the outer steps."),
            option("--outer-momentum", type=float, default=0.9, metavar="MU",
                   help="Nesterov's momentum of the outer steps."),
            option("--merge", type=float, metavar="A",
                   help="Share of the way to the common model that a rank goes after an outer step; 1 takes it.  "
                        "[default: 1; 0.5 with --delay]"),
            option("--outer-warmup", type=float, default=0.0, metavar="EPOCHS",
                   help="Epochs before the outer steps, in which the gradients are averaged in every step."),
            option("--outer-warmup-scheme", default="dense", metavar="NAME:OPTION=VALUE,...",
                   help="Compression scheme of these gradients."),
        ),
        section(
            "Evaluation",
            option("--eval-every", type=int, metavar="STEPS", help="Steps between evaluations.  [default: one epoch]"),
            option("--patience", type=int, metavar="N", help="Stop after N evaluations without a better metric."),
            option("--plot", type=OUTPUT, metavar="FILE",
                   help="Draw loss, metric, density and memory norm (.png, .svg, .pdf)."),
        ),
    )  # fmt: skip


looping = looping_with()


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """The numbers in ``256,128``."""
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise click.BadParameter(f"expected whole numbers as in 256,128, got {text!r}", param_hint=option) from None


@dataclass
class Session:
    """Checkpoints, progress and signals of a training command."""

    keeper: Keeper
    progress: SteadyProgress
    signals: StopSignals


@contextmanager
def session(comm: Comm, files: Files) -> Iterator[Session]:
    """Open the checkpoints; within the block a stop signal ends the run with one (collective)."""
    from ...apps.checkpoints import Keeper

    with SteadyProgress(quiet=comm.rank != 0) as progress, StopSignals(wanted=files.checkpoint is not None) as signals:
        keeper = Keeper(comm, files.checkpoint, every=files.checkpoint_every, resume=files.resume, asked=signals.asked,
                        say=lambda text: _say(comm, progress, text),
                        count=lambda steps: setattr(progress, "step", steps))
        yield Session(keeper, progress, signals)


def inputs() -> Iterator[Path]:
    """The files of the command's data, found lazily; none for a command without data."""
    given = click.get_current_context().params.get("source")
    if given is None:
        return
    source = Path(given)
    yield source
    yield from source.iterdir() if source.is_dir() else ()


def recorded(comm: Comm, files: Files, title: str, progress: SteadyProgress,
             work: Callable[[Recorder | NullRecorder, Callable[[T], None]], T], show: Callable[[T], None],
             ) -> T:  # fmt: skip
    """Run ``work`` with the recorder of a trace; rank 0 shows the result, even if the trace cannot be written.

    ``work`` may give its result to its second argument: it is then shown even if the last checkpoint fails. Call it
    after all settings have been checked (collective).
    """
    results: list[T] = []
    try:
        with recorder(comm, files, title) as trace:
            results.append(work(trace, results.append))
    finally:
        if results and comm.rank == 0:
            progress.clear()
            show(results[0])
    if comm.rank == 0:
        name_trace(files)
    return results[0]


def recorder(comm: Comm, files: Files, title: str) -> Recorder | NullRecorder:
    """The recorder of a trace, or of nothing; open it after all settings have been checked (collective)."""
    from ...trace import NullRecorder, Recorder

    if files.trace is None:
        return NullRecorder()
    path = Path(files.trace)
    run_collectively(comm, lambda: refuse_inputs(path, inputs()), comm.rank == 0)
    return Recorder(comm, path, force=files.force, title=title, configuration=click.get_current_context().params)


def exit_code(comm: Comm, keeper: Keeper, signals: StopSignals) -> int:
    """0 for a complete run; for a stopped one its exit code, with a message."""
    if not keeper.stopped:
        return 0
    if comm.rank == 0:
        click.echo(f"stopped{' by ' * bool(signals.name)}{signals.name} and saved in {keeper.path}; "
                   "not complete: go on with --resume", err=True)
    return ExitCode.STOPPED


def thinned(rows: Sequence[T], most: int) -> Sequence[T]:
    """At most ``most`` evenly spread rows of a table, the last among them."""
    stride = max(1, -(-len(rows) // most))
    return rows[::-1][::stride][::-1]


def name_trace(files: Files) -> None:
    """Print where the trace is, if there is one, and the command that explains it; nothing with ``--json``."""
    if files.trace is not None and not files.as_json:
        click.echo(f"trace in {files.trace}: explain it with mpicomp trace report {files.trace}")


def _say(comm: Comm, progress: SteadyProgress, text: str) -> None:
    if comm.rank == 0:
        progress.clear()
        click.echo(text, err=True)
