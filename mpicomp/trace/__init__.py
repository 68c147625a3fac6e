"""Recording a run and explaining it afterwards. h5py is imported only when a trace is merged or read."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Recording needs none of the reading side, so each name is loaded on first use.
_HOME = {
    "Recorder": ".recorder",
    "NullRecorder": ".recorder",
    "recover": ".merge",
    "open_trace": ".read",
    "export": ".exporting",
    "validate": ".check",
    "info": ".analysis",
    "summary": ".analysis",
    "phases": ".analysis",
    "steps": ".analyses.over_steps",
    "traffic": ".analysis",
    "imbalance": ".analysis",
    "metrics": ".analysis",
    "report": ".analysis",
    "breakdown": ".analyses.shares",
    "overlap": ".analyses.shares",
    "efficiency": ".analyses.shares",
    "spikes": ".analyses.over_steps",
    "heatmap": ".analyses.over_steps",
    "stragglers": ".analyses.lateness",
    "collectives": ".analyses.traffic",
    "bandwidth": ".analyses.traffic",
    "matrix": ".analyses.traffic",
    "codec": ".analyses.compression",
    "measures": ".analyses.compression",
    "diff": ".analyses.comparison",
    "timeline": ".analyses.picture",
    "hang": ".analyses.standstill",
    "write_page": ".page",
}

__all__ = [*sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
