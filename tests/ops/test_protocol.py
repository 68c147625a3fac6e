"""Every array module provides the operations of `mpicomp.ops.protocol.Ops`, with the same arguments."""

import inspect
import re

import pytest

from mpicomp.ops import cpu, gpu, oracle
from mpicomp.ops.protocol import NAMES, Ops

MODULES = pytest.mark.parametrize("module", [oracle, cpu, gpu], ids=lambda module: module.__name__)


def arguments(function) -> list[tuple[str, object]]:
    """Names and defaults, without self; those of a compiled function are in its docstring."""
    try:
        parameters = inspect.signature(function).parameters.values()
        return [(one.name, one.default) for one in parameters if one.name != "self"]
    except ValueError:
        inside = re.match(r"\w+\((.*?)\) ->", function.__doc__)[1]
        defaults = {"None": None, "True": True, "False": False, "0": 0, "1.0": 1.0}
        found = [re.match(r"(\w+): .*?(?: = ([\w.]+))?$", one).groups() for one in inside.split(", ")]
        return [(name, inspect.Parameter.empty if text is None else defaults[text]) for name, text in found]


@MODULES
@pytest.mark.parametrize("name", NAMES)
def test_a_module_has_each_operation_with_its_arguments(module, name):
    assert arguments(getattr(module, name)) == arguments(getattr(Ops, name))


@MODULES
def test_an_operation_is_the_modules_own(module):
    """Star imports put the files of a module together: none may hide an operation by a name of its own."""
    for name in NAMES:
        home = getattr(module, name).__module__ or ""
        assert home.startswith((module.__name__, "mpicomp.ops._cpu", "mpicomp.ops.host")), (name, home)
        assert module is not gpu or home.startswith(module.__name__) or name == "index_dtype", (name, home)
    assert (1 << 40 if module is gpu else 1 << 20) == module.PIECE
