"""Recording of runs, and analyses of the traces. h5py is imported only when a trace is merged or read.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from mpi4py import MPI
    >>> import mpicomp
    >>> path = Path(tempfile.mkdtemp()) / "run.h5"
    >>> with mpicomp.trace.Recorder(mpicomp.Comm(MPI.COMM_SELF), path) as recorder:
    ...     for step in range(3):  # times as an example; `region` and `step` take them themselves
    ...         begin = 1000 * step
    ...         recorder.event("step", begin, begin + 900, step=step)
    ...         recorder.event("exchange", begin + 300, begin + 900, step=step, nbytes_sent=64, nbytes_dense=4096)
    ...         recorder.metric("loss", step, 1 / (step + 1))
    >>> [(row["kind"], row["count"], row["total"]) for row in mpicomp.trace.phases(path)]  # ns
    [('step', 3, 2700), ('exchange', 3, 1800)]
    >>> mpicomp.trace.metrics(path)["loss"]["values"]
    [1.0, 0.5, 0.3333333333333333]
    >>> mpicomp.trace.steps(path)["median"]
    900.0
    >>> classes = mpicomp.trace.breakdown(path)["classes"]
    >>> dict(zip(classes["class"].tolist(), classes["time"].tolist()))["communication"]
    1800.0
    >>> with mpicomp.trace.open_trace(path) as trace:
    ...     print(trace.events("step", "t_start")["t_start"].tolist(), trace.vocabulary("kind"))
    [0, 300, 1000, 1300, 2000, 2300] ['none', 'step', 'exchange']
    >>> mpicomp.trace.validate(path)  # departures from docs/trace-format.md
    []
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .analyses.arrivals import stragglers
    from .analyses.comparison import diff
    from .analyses.compression import codec, measures
    from .analyses.hang import hang
    from .analyses.over_steps import heatmap, spikes, steps
    from .analyses.shares import breakdown, efficiency, overlap
    from .analyses.timeline import timeline
    from .analyses.traffic import bandwidth, collectives, matrix
    from .analysis import imbalance, info, metrics, phases, report, summary, traffic
    from .check import validate
    from .exporting import export
    from .merge_journals import recover
    from .page import write_page
    from .read import open_trace
    from .recorder import NullRecorder, Recorder

# Recording needs none of the reading side, so each name is loaded on first use.
_MODULES = {
    ".recorder": ("Recorder", "NullRecorder"),
    ".merge_journals": ("recover",),
    ".read": ("open_trace",),
    ".exporting": ("export",),
    ".check": ("validate",),
    ".analysis": ("info", "summary", "phases", "traffic", "imbalance", "metrics", "report"),
    ".analyses.over_steps": ("steps", "spikes", "heatmap"),
    ".analyses.shares": ("breakdown", "overlap", "efficiency"),
    ".analyses.arrivals": ("stragglers",),
    ".analyses.traffic": ("collectives", "bandwidth", "matrix"),
    ".analyses.compression": ("codec", "measures"),
    ".analyses.comparison": ("diff",),
    ".analyses.timeline": ("timeline",),
    ".analyses.hang": ("hang",),
    ".page": ("write_page",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "NullRecorder", "Recorder", "bandwidth", "breakdown", "codec", "collectives", "diff", "efficiency", "export",
    "hang", "heatmap", "imbalance", "info", "matrix", "measures", "metrics", "open_trace", "overlap", "phases",
    "recover", "report", "spikes", "steps", "stragglers", "summary", "timeline", "traffic", "validate",
    "write_page",
]  # fmt: skip


if not TYPE_CHECKING:  # else type checkers would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name in _HOME:
            return getattr(import_module(_HOME[name], __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
