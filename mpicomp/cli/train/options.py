"""What all training commands share: options, trace, checkpoints, the answer to a signal, and the exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ... import allreduce
from ..._util.atomic_files import refuse_inputs
from ...comm.safety.collective_errors import together
from ..console import SteadyProgress
from ..options import Decorator, all_of
from ..signals import STOPPED, StopSignals

if TYPE_CHECKING:
    from ...apps.checkpoints import Keeper


def training(epochs: float) -> Decorator:
    """How every app trains; ``epochs`` is the default, and may be a fraction where that is a float."""
    return all_of(
        click.option("--workers", type=int, metavar="N",
                     help="Virtual workers over all ranks, each with its own shard and error memory.  "
                          "[default: one a rank]"),
        click.option("--epochs", type=type(epochs), default=epochs, show_default=True, help="Passes over the data."),
        click.option("--scheme", default="dense", show_default=True, metavar="NAME:OPTION=VALUE,...",
                     help="Compression scheme, see mpicomp schemes."),
        click.option("--algorithm", type=click.Choice(allreduce.names()), default="auto", show_default=True,
                     help="Dense all-reduce under the scheme."),
        click.option("--seed", type=int, default=0, show_default=True, help="Of all that is random."),
    )


recording = all_of(
    click.option("--trace", metavar="FILE", help="Record every step in this HDF5 file, for mpicomp trace."),
    click.option("--force", is_flag=True, help="Replace existing output files, but no checkpoint."),
    click.option("--checkpoint", metavar="DIR",
                 help="Save checkpoints in this folder: at the end, and when SIGUSR1 or SIGTERM stops the run "
                      f"(exit code {STOPPED})."),
    click.option("--checkpoint-every", type=int, metavar="STEPS", help="Save one after every so many steps, too."),
    click.option("--resume", is_flag=True, help="Resume from the newest complete checkpoint; start if there is none."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
)


SGD_HELP = "sgd:momentum=0.9; plain sgd where the scheme has momentum"


def looping_with(lr: float = 0.05, batch: int = 32, clip: float = 0.0, optimizer: str | None = None) -> Decorator:
    """Options of the common loop, with an app's own defaults."""
    return all_of(
        click.option("--batch", type=int, default=batch, show_default=True, help="Rows a worker uses in a step."),
        click.option("--optimizer", metavar="NAME:OPTION=VALUE,...", default=optimizer,
                     help=f"sgd, adam, lars or lamb.  [default: {optimizer or SGD_HELP}]"),
        click.option("--lr", type=float, default=lr, show_default=True, help="Learning rate."),
        click.option("--schedule", default="constant", show_default=True, metavar="NAME:OPTION=VALUE,...",
                     help="Of the learning rate: constant, step:at=2+4,factor=0.1 (epochs), cosine."),
        click.option("--warmup", type=float, default=0.0, show_default=True, metavar="EPOCHS",
                     help="The learning rate rises to --lr from --lr over the number of workers."),
        click.option("--compress-warmup", type=float, default=0.0, show_default=True, metavar="EPOCHS",
                     help="The density falls to the scheme's own, in the scheme's stages."),
        click.option("--sam", type=float, default=0.0, show_default=True, metavar="RHO",
                     help="Sharpness-aware minimisation within each worker's batch; 0 is off."),
        click.option("--clip", type=float, default=clip, show_default=True, metavar="NORM",
                     help="Cut each worker's gradient to this norm over the root of the number of workers, before "
                          "compression; 0 is off."),
        click.option("--eval-every", type=int, metavar="STEPS",
                     help="Steps between evaluations.  [default: one epoch]"),
        click.option("--patience", type=int, metavar="N", help="Stop after N evaluations without a better metric."),
        click.option("--plot", metavar="FILE", help="Draw loss, metric, density and memory norm (.png, .svg, .pdf)."),
    )


looping = looping_with()


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """The numbers in ``256,128``."""
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise click.BadParameter(f"expected whole numbers as in 256,128, got {text!r}", param_hint=option) from None


@dataclass
class Session:
    """What a training command works with."""

    keeper: Keeper
    progress: SteadyProgress
    signals: StopSignals


@contextmanager
def session(comm: Any, *, checkpoint: str | None, checkpoint_every: int | None, resume: bool) -> Iterator[Session]:
    """Open the checkpoints; from here on signals are answered with one (collective)."""
    from ...apps.checkpoints import Keeper

    with SteadyProgress(quiet=comm.rank != 0) as progress, StopSignals(wanted=checkpoint is not None) as signals:
        keeper = Keeper(comm, checkpoint, every=checkpoint_every, resume=resume, asked=signals.asked,
                        say=lambda text: _say(comm, progress, text),
                        count=lambda steps: setattr(progress, "step", steps))
        yield Session(keeper, progress, signals)


def inputs() -> Iterator[Path]:
    """The files that the command's data may lie in: not looked for before one is asked for."""
    source = Path(click.get_current_context().params["source"])
    yield source
    yield from source.iterdir() if source.is_dir() else ()


def recorder(comm: Any, path: str | None, force: bool, title: str) -> Any:
    """The recorder of a trace, or of nothing; open it only when all settings are known to be good (collective)."""
    from ...trace import NullRecorder, Recorder

    if path is None:
        return NullRecorder()
    together(comm, lambda: refuse_inputs(Path(path), inputs()), comm.rank == 0)
    return Recorder(comm, path, force=force, title=title, configuration=click.get_current_context().params)


def exit_code(comm: Any, keeper: Keeper, signals: StopSignals) -> int:
    """0 for a run that is over; that of a stopped one, which is said."""
    if not keeper.stopped:
        return 0
    if comm.rank == 0:
        click.echo(f"stopped{' by ' * bool(signals.name)}{signals.name} and saved in {keeper.path}; "
                   "not complete: go on with --resume", err=True)
    return STOPPED


def _say(comm: Any, progress: SteadyProgress, text: str) -> None:
    if comm.rank == 0:
        progress.clear()
        click.echo(text, err=True)
