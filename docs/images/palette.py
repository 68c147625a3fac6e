"""Style of all pictures of the documentation: one colour per method, and SVG files that follow light and dark mode."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

WIDTH = 8.6  # inches: 825 pixels, the width of a page's text
PAPER, INK, MUTED, GRID = "#ffffff", "#1f2328", "#59636e", "#d1d9e0"
NATIVE, EXACT, OTHER = "#818b98", "#0969da", "#57606a"
SCALECOM, TOPK, HIGHLIGHT, LIGHT = "#1a7f37", "#8250df", "#d9822b", "#b8bec5"
# Colours of methods, by the beginning of a method's name or label.
LOSSY = {
    "scalecom": SCALECOM, "clt-k": SCALECOM, "leader": SCALECOM, "lr": SCALECOM, "dgc": "#bc4c00", "top": TOPK,
    "powersgd": "#bf3989", "threshold": "#9a6700", "half": "#0a91a8", "qsgd": "#5f7a1f", "onebit": "#d1242f",
}  # fmt: skip
DARK = {
    PAPER: "#0d1117", INK: "#e6edf3", MUTED: "#9198a1", GRID: "#3d444d", NATIVE: "#9ea7b3", EXACT: "#58a6ff",
    OTHER: "#8b949e", SCALECOM: "#3fb950", TOPK: "#a371f7", HIGHLIGHT: "#f0a050", LIGHT: "#4b535d",
    "#bc4c00": "#f0883e", "#bf3989": "#f778ba", "#9a6700": "#d4a72c", "#0a91a8": "#39c5dd", "#5f7a1f": "#a5c244",
    "#d1242f": "#ff7b72",
}  # fmt: skip
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "mpicomp", "font.family": "sans-serif", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False, "figure.facecolor": PAPER, "axes.facecolor": "none",
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": MUTED, "axes.titlecolor": INK, "xtick.color": MUTED,
    "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": GRID, "axes.titlesize": 9,
    "axes.titlelocation": "left", "legend.frameon": False, "legend.fontsize": 8, "axes.axisbelow": True,
}  # fmt: skip


def colour(method: str) -> str:
    """Colour of a method, by the beginning of its name or label."""
    if method in ("native", "MPI_Allreduce"):
        return NATIVE
    if method.split(",")[0] in ("dense", "ring", "halving_doubling", "auto", "node_shared"):
        return EXACT
    return next((code for start, code in LOSSY.items() if method.lower().startswith(start)), OTHER)


def titled(figure: Figure, message: str, setting: str = "") -> None:
    """Write a picture's message, and below it the setting in smaller letters, at the top left."""
    lines = 2 if setting else 1
    height = figure.get_figheight()
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - (0.08 + 0.2 * lines) / height))
    figure.text(0.008, 1 - 0.08 / height, message, fontsize=11, va="top")
    if setting:
        figure.text(0.008, 1 - 0.29 / height, setting, fontsize=8, va="top", color=MUTED)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG whose colours follow the reader's preference, light or dark."""
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    rules = "".join(f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
                    for light, dark in DARK.items() for kind in ("fill", "stroke"))
    text = path.read_text()
    path.write_text(text.replace("</style>", f"@media (prefers-color-scheme:dark){{{rules}}}</style>", 1))


def style() -> matplotlib.rc_context:
    """Context in which figures get this style."""
    return matplotlib.rc_context(STYLE)
