"""Passes of TVM -> the same passes, without inferring types that are known.

TVM infers the types of a whole module before each pass that asks for them, and again behind each
pass over functions: some 60 times for a network, which took most of the time in which large ones
are prepared. Here a module is left as it is if all its functions were typed before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tvm

from heteroplace.relay.opt_level import inner_context

_PASS = "InferType"
_UNCALLED = ("main", "_tmp")
"""What begins the names of functions that none calls: the model, and what rewriters of patterns
have typed beside it."""


@tvm.instrument.pass_instrument
class _TypesOnce:
    """An instrument by which InferType does not run on what it has made itself."""

    def __init__(self) -> None:
        # It holds the functions, so that no pass changes one in place, or gets its address.
        self._typed: set[tvm.ir.BaseFunc] = set()

    def should_run(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> bool:
        """Say whether a pass is to run."""
        return info.name != _PASS or not self._is_typed(mod)

    def run_after_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Note what InferType has made."""
        if info.name == _PASS and _is_alone(mod):
            self._typed.update(mod.functions.values())

    def _is_typed(self, mod: tvm.IRModule) -> bool:
        return _is_alone(mod) and all(each in self._typed for each in mod.functions.values())


def _is_alone(mod: tvm.IRModule) -> bool:
    """Say whether no function can be one that another calls, whose type may have changed."""
    return all(variable.name_hint.startswith(_UNCALLED) for variable in mod.functions)


@contextlib.contextmanager
def types_once() -> Iterator[None]:
    """Within, passes run under the options in force, and types that are known are not inferred.

    Where somebody has instruments of his own, he sees every pass, and nothing is left out.
    """
    current: Any = tvm.transform.PassContext.current()
    if len(current.instruments or ()):
        yield
        return
    with inner_context({}, [_TypesOnce()]):
        yield
