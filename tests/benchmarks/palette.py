"""One colour per method in every picture of the documentation."""

NATIVE, EXACT, OTHER = "#8a94a6", "#1f6feb", "#57606a"
LOSSY = {
    "scalecom": "#1a7f37", "clt-k": "#1a7f37", "leader": "#1a7f37", "dgc": "#bc4c00", "top-": "#8250df",
    "topk": "#8250df", "powersgd": "#bf3989", "threshold": "#9a6700", "half": "#54aeff", "qsgd": "#1b7c83",
    "onebit": "#d1242f",
}  # fmt: skip


def colour(method: str) -> str:
    """Colour of a method, by the beginning of its name or label."""
    if method in ("native", "MPI_Allreduce"):
        return NATIVE
    if method.split(",")[0] in ("dense", "ring", "halving_doubling", "auto"):
        return EXACT
    return next((code for start, code in LOSSY.items() if method.lower().startswith(start)), OTHER)
