"""Pictures of docs/concepts.md, computed rather than sketched: python docs/images/draw.py."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from palette import EXACT, HIGHLIGHT, LIGHT, MUTED, SCALECOM, TOPK, WIDTH, save, style, titled

HERE = Path(__file__).resolve().parent
RANKS = 4
MESSAGES = {
    "ring": "Ring all-reduce: after 2(p-1) steps every rank holds every sum",
    "halving-doubling": "Halving-doubling: after 2 log2(p) steps every rank holds every sum",
}


def main():
    with style():
        blocks("ring", ring())
        blocks("halving-doubling", halving_doubling())
        leader()
        error_memory()
        low_pass()
        build_up()


# -- dense schedules: which contributions each rank's copy of each block holds


def start():
    return [[{rank} for _ in range(RANKS)] for rank in range(RANKS)]


def step(state, moves, add):
    """The state after messages ``(source, target, block)`` that were all sent at once."""
    after = [[set(held) for held in row] for row in state]
    for source, target, block in moves:
        after[target][block] = (after[target][block] if add else set()) | state[source][block]
    return after


def ring():
    """Blocks go round, added to on the way; then the finished ones go round."""
    yield "at first", start(), []
    state = start()
    for number in range(2 * (RANKS - 1)):
        add = number < RANKS - 1
        moves = [(rank, (rank + 1) % RANKS, (rank - number + (0 if add else RANKS)) % RANKS) for rank in range(RANKS)]
        state = step(state, moves, add)
        yield f"step {number + 1}: {'add' if add else 'copy'}", state, moves


def halving_doubling():
    """Pairs exchange halves of what they still hold and add; then the same pairs, backwards, double what they have."""
    yield "at first", start(), []
    state, history, owned = start(), [], [range(RANKS) for _ in range(RANKS)]
    distance = RANKS // 2
    while distance:
        moves = []
        for rank in range(RANKS):
            half = len(owned[rank]) // 2
            low, high = owned[rank][:half], owned[rank][half:]
            keep, give = (high, low) if rank & distance else (low, high)
            moves += [(rank, rank ^ distance, block) for block in give]
            owned[rank] = keep
        state = step(state, moves, add=True)
        history.append(distance)
        yield f"step {len(history)}:\nhalve, add", state, moves
        distance //= 2
    for number, distance in enumerate(reversed(history), len(history) + 1):
        moves = [(rank, rank ^ distance, block) for rank in range(RANKS) for block in owned[rank]]
        state = step(state, moves, add=False)
        owned = [sorted({*owned[rank], *owned[rank ^ distance]}) for rank in range(RANKS)]
        yield f"step {number}:\ndouble, copy", state, moves


def blocks(name, panels):
    """Draw one square of blocks per step: numbers count the contributions in a block, frames mark arrived blocks."""
    panels = list(panels)
    assert all(len(held) == RANKS for row in panels[-1][1] for held in row)  # every rank ends with every sum
    figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH, 2.2 if len(panels) > 5 else 2.7), sharey=True,
                                layout="constrained")
    for axis, (title, state, moves) in zip(axes, panels, strict=True):
        count = np.array([[len(held) for held in row] for row in state])
        axis.set_aspect("equal")
        axis.set_xlim(-0.5, RANKS - 0.5)
        axis.set_ylim(RANKS - 0.5, -0.5)
        for (row, column), value in np.ndenumerate(count):
            arrived = any((target, block) == (row, column) for _, target, block in moves)
            axis.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, color=EXACT, alpha=0.13 * value, linewidth=0))
            axis.text(column, row, value, ha="center", va="center")
            if arrived:
                axis.add_patch(plt.Rectangle((column - 0.42, row - 0.42), 0.84, 0.84, fill=False, edgecolor=HIGHLIGHT,
                                             linewidth=1.5))
        axis.set_title(title, fontsize=8)
        axis.set_xticks(range(RANKS), [f"b{block}" for block in range(RANKS)])
        axis.set_yticks(range(RANKS), [f"rank {rank}" for rank in range(RANKS)])
        axis.tick_params(length=0, labelsize=8)
        axis.spines[:].set_visible(False)
    titled(figure, MESSAGES[name],
           f"{RANKS} ranks, {RANKS} blocks; number: contributions in the sum; frame: just arrived")
    save(figure, HERE / f"{name}.svg")


# -- compression


def leader():
    """Draw the selected coordinates: every rank's own choice, or one rank's choice for all."""
    rng = np.random.default_rng(8)
    common = rng.standard_normal(24)
    vectors = [common + 0.7 * rng.standard_normal(24) for _ in range(3)]
    chosen = [np.argsort(-abs(vector))[:4] for vector in vectors]
    figure, axes = plt.subplots(3, 2, figsize=(WIDTH, 3.6), sharex=True, sharey=True,
                                layout="constrained")
    for column, pick in enumerate((lambda rank: chosen[rank], lambda rank: chosen[0])):
        union = {int(index) for rank in range(3) for index in pick(rank)}
        title = ("each rank chooses: {} coordinates to add" if column == 0 else "rank 0 leads: {} coordinates to add")
        axes[0, column].set_title(title.format(len(union)), fontsize=9)
        for rank, vector in enumerate(vectors):
            chosen_colour = SCALECOM if column else TOPK
            colours = [chosen_colour if index in pick(rank) else LIGHT for index in range(24)]
            axes[rank, column].bar(range(24), vector, color=colours)
            axes[rank, column].set_xticks([])
            axes[rank, column].set_yticks([])
            axes[rank, 0].set_ylabel(f"rank {rank}", rotation=0, ha="right")
    titled(figure, "With a leader all ranks send the same coordinates, so the sum stays short",
           "one vector per rank, with similar large elements; coloured: selected coordinates")
    save(figure, HERE / "leader.svg")


def error_memory():
    """Four coordinates with steady gradients, of which the largest of u is sent in each step."""
    gradient, steps = np.array([1.0, 0.5, 0.25, 0.1]), 40
    memory, kept, sent = np.zeros(4), np.zeros((steps, 4)), np.zeros((steps, 4))
    for number in range(steps):
        u = memory + gradient
        index = int(abs(u).argmax())
        sent[number, index] = u[index]
        memory = u - sent[number]
        kept[number] = memory
    assert np.allclose(sent.sum(0) + memory, steps * gradient)  # sent + kept = came in
    figure, (above, below) = plt.subplots(2, 1, figsize=(WIDTH, 4.2), sharex=True, layout="constrained")
    for column, colour in enumerate((EXACT, HIGHLIGHT, SCALECOM, TOPK)):
        above.plot(range(1, steps + 1), kept[:, column], color=colour, label=f"gradient {gradient[column]:g}")
        below.plot(range(1, steps + 1), sent[:, column].cumsum(), color=colour, drawstyle="steps-post")
        below.plot([0, steps], [0, steps * gradient[column]], color=colour, linestyle=":", linewidth=1)
    above.set_ylabel("kept in memory")
    above.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
    below.set_ylabel("sent so far")
    below.set_xlabel("step (dotted: what a dense all-reduce would have sent)")
    titled(figure, "Error memory: small coordinates are sent later, and nothing is lost",
           "four coordinates with steady gradients; each step sends the largest of memory + gradient")
    save(figure, HERE / "error-memory.svg")


def low_pass():
    """The memory of one coordinate that is sent in every twentieth step, with and without the filter."""
    rng = np.random.default_rng(3)
    gradient = 0.2 + rng.standard_normal(120)
    figure, axis = plt.subplots(figsize=(WIDTH, 2.9), layout="constrained")
    for beta, colour in ((1.0, MUTED), (0.1, SCALECOM)):
        memory, kept = 0.0, []
        for number, value in enumerate(gradient):
            u = memory + value
            sent = u if number % 20 == 19 else 0.0
            memory = (1 - beta) * memory + beta * (u - sent)
            kept.append(memory)
        axis.plot(range(1, len(kept) + 1), kept, color=colour, label=f"beta = {beta:g}")
    axis.axhline(0, color=MUTED, linewidth=0.5)
    axis.set_xlabel("step; sent in every twentieth")
    axis.set_ylabel("kept in memory")
    axis.legend()
    titled(figure, "The low-pass filter (beta = 0.1) keeps the memory small and smooth",
           "simulated: memory of one coordinate with a noisy gradient")
    save(figure, HERE / "low-pass.svg")


def build_up():
    """Draw the number of coordinates in the sum: if ranks choose 1 % each, and if a leader chooses."""
    rng, n, density = np.random.default_rng(5), 20_000, 0.01
    ranks = [1, 2, 4, 8, 16, 32, 64, 128]
    figure, axis = plt.subplots(figsize=(WIDTH, 3.4), layout="constrained")
    for share, face in ((0.0, TOPK), (0.5, "none")):  # of a gradient's variance that all ranks have in common
        common, union, found = rng.standard_normal(n), np.zeros(n, bool), []
        for rank in range(1, ranks[-1] + 1):
            u = share**0.5 * common + (1 - share) ** 0.5 * rng.standard_normal(n)
            union[np.argpartition(-abs(u), int(density * n))[: int(density * n)]] = True
            if rank in ranks:
                found.append(union.mean())
        axis.plot(ranks, found, marker="o", color=TOPK, markerfacecolor=face, markeredgecolor=TOPK,
                  label=f"each rank chooses, {100 * share:.0f} % of the gradient in common")
    axis.plot(ranks, [density] * len(ranks), marker="o", color=SCALECOM, label="a leader chooses")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(ranks, ranks)
    axis.set_yticks([0.01, 0.1, 1], ["1 %", "10 %", "100 %"])
    axis.set_xlabel("ranks")
    axis.set_ylabel("coordinates in the sum")
    axis.legend()
    titled(figure, "Sets that every rank chooses grow with the number of ranks, a leader's set does not",
           "simulated: top 1 % of random gradients")
    save(figure, HERE / "build-up.svg")


if __name__ == "__main__":
    main()
