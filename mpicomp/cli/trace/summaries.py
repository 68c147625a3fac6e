"""One line on each analysis, known without importing any."""

from __future__ import annotations

SUMMARIES = {
    "steps": "Duration of the steps, their course, and their phases.",
    "breakdown": "Share of each phase, per rank and overall.",
    "overlap": "Communication hidden under computation, and exposed.",
    "collectives": "Count, time and bandwidth by operation, algorithm and size.",
    "stragglers": "Ranks that arrive late, how late, how often.",
    "spikes": "Steps far above the median, and their causes.",
    "codec": "Benefit of compression: bytes saved, time spent.",
    "measures": "Density, memory norm, errors and loss over the steps.",
    "bandwidth": "Bus bandwidth by algorithm and size, with a model.",
    "heatmap": "Ranks x steps, as shades or a picture.",
    "matrix": "Bytes between ranks or nodes.",
    "timeline": "One step, rank by rank, as text or a picture.",
    "efficiency": "POP metrics: load balance, communication, transfer.",
    "diff": "Two traces, phase by phase, with the noise.",
    "hang": "The call that each rank of an unfinished run is in.",
}
