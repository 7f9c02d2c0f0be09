"""TVM's modules that read docstrings -> importable where Python strips them (`python -OO`).

`tvm.topi.generic_op_impl` formats the docstring of a function while it is imported, so without
docstrings TVM cannot be imported at all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

_MODULES = frozenset({"tvm.topi.generic_op_impl"})
_STRIPS = 2
"""`sys.flags.optimize` from which on docstrings are stripped."""


class _Loader(SourceFileLoader):
    """Loads a module with its docstrings; never from a file of bytecode, which has none."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        code: CodeType = compile(source, path, "exec", dont_inherit=True, optimize=_STRIPS - 1)
        return code


class _Finder:
    """Finds the modules that need their docstrings."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _MODULES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


def keep_docstrings() -> None:
    """Let TVM be imported where Python strips docstrings; elsewhere nothing changes."""
    if sys.flags.optimize >= _STRIPS and _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
