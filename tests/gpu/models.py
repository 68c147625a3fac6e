"""Shapes of models that are measured and counted."""

from __future__ import annotations


def resnet50(divisor: int = 1) -> list[tuple[int, ...]]:
    """The shapes of ResNet-50's 161 tensors, every number of channels divided."""
    shapes, channels = [(64, 3, 7, 7), (64,), (64,)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for conv in ((width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [conv, conv[:1], conv[:1]]
            if block == 0:
                shapes += [(4 * width, channels, 1, 1), (4 * width,), (4 * width,)]
            channels = 4 * width
    shapes += [(1000, 2048), (1000,)]
    small = [(max(1, s[0] // divisor), *(max(1, c // divisor) for c in s[1:2]), *s[2:]) for s in shapes]
    assert len(small) == 161
    return small
