"""States with tensors in the place of arrays, as ``torch.load`` reads them without unpickling, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ..errors import InvalidArgument


def with_tensors(state: Mapping[str, object]) -> dict[str, object]:
    """A state, in which others may be nested; tensors share the arrays' memory."""
    return {name: with_tensors(value) if isinstance(value, Mapping) else
            torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in state.items()}


def with_arrays(state: Mapping[str, object]) -> dict[str, object]:
    """The state that ``with_tensors`` was given."""
    if not isinstance(state, Mapping):
        raise InvalidArgument(f"a state must be what state_dict() returned, got {type(state).__name__}")
    return {name: with_arrays(value) if isinstance(value, Mapping) else
            value.cpu().numpy() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
