"""Experiments as tables, raw numbers and pictures in docs/."""

import json

import pictures


def text(experiment):
    """The table of an experiment as Markdown, and what was expected."""
    rows, raw, expected = experiment
    if not any(raw.values()):
        return f"Not run yet.\n\n*Expected:* {expected}."
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([str(row[name]) for name in columns] for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n*Expected:* {expected}."


def write(docs, done):
    """Tables between their marks in docs/development/fidelity.md, one raw file, and the pictures."""
    page = docs / "development" / "fidelity.md"
    page.write_text(filled(page.read_text(), done))
    raw = docs / "results" / "fidelity.json"
    kept = json.loads(raw.read_text()) if raw.exists() else {}
    kept.update({name: experiment[1] for name, experiment in done.items()})
    raw.write_text(json.dumps(short(kept), separators=(",", ":")) + "\n")
    pictures.draw(docs / "images", {name: kept[name] for name in done})


def filled(page, done):
    """The page with the tables of what was done; every experiment has its place there."""
    for name, experiment in done.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if begin not in page or end not in page:
            raise SystemExit(f"development/fidelity.md must have {begin.strip()} and {end} around the table of {name}")
        head, rest = page.split(begin)
        page = head + begin + text(experiment) + "\n" + end + rest.split(end)[1]
    return page


def short(value):
    """Plain values with floats of five digits: enough for any picture, and a file of a readable size."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: short(one) for name, one in value.items()}
    return [short(one) for one in value] if isinstance(value, list) else value
