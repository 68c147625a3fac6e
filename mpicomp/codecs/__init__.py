"""Codecs: how a value is written on the wire. One a file, chosen by declared name."""

from .float import Float

CODECS = {part.name: part for part in (Float,)}
