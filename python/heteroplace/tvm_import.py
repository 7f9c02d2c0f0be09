"""How TVM is imported: code around the import of a module, without waste or a trace in files."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

Around = Callable[[ModuleType], AbstractContextManager[None]]
"""Takes a module that is about to run; its block ends when the module has run."""

_LISTING = "list_global_func_names"
_VERSIONS = "distutils.version"
_TEST_DATA = "TEST_DATA_ROOT_PATH"
"""Variable of the environment, and of TVM's module, with the folder of downloaded test data."""


def on_import(name: str, around: Around) -> None:
    """Enter `around` while a module is imported for the first time; later imports are as usual.

    Parameters
    ----------
    name
        Full name of the module. Nothing happens if it is loaded already.
    """
    if name not in sys.modules:
        sys.meta_path.insert(0, _Hook(name, around))


class _Hook(MetaPathFinder, Loader):
    """Loads one module as it would be without this, within a context."""

    def __init__(self, name: str, around: Around) -> None:
        self._name = name
        self._around = around
        self._loader: Loader | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if self._loader is None else self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with self._around(module):
            if self._loader is not None:
                self._loader.exec_module(module)


def keep_tvm_from_writing() -> None:
    """Let TVM be imported without a trace in the file system, unless it is imported already.

    It would make `.pkl_memoize_py3` in the current folder, run what a pickle there says, and make
    `.tvm_test_data` in the user's home, which need not exist or be writable.
    """
    on_import("tvm.contrib.pickle_memoize", _memoizing_in_memory)
    on_import("tvm.contrib.download", _without_test_data)
    on_import("tvm.autotvm.tophub", _without_home)


@contextmanager
def _memoizing_in_memory(module: ModuleType) -> Iterator[None]:
    yield
    with_file = module.Cache.__init__

    def init(cache: Any, key: str, save_at_exit: bool) -> None:
        if save_at_exit:  # of a caller who wants files
            with_file(cache, key, save_at_exit)
        else:  # TVM never writes what such a cache holds
            cache.path, cache.cache, cache.dirty, cache.save_at_exit = key, {}, False, False

    module.Cache.__init__ = init


@contextmanager
def _with_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable that is not set."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


@contextmanager
def _without_test_data(module: ModuleType) -> Iterator[None]:
    if _TEST_DATA in os.environ:
        yield
        return
    with _with_variable(_TEST_DATA, str(Path(__file__).parent)):  # it exists: nothing is made
        yield
    # TVM's default; a download makes the folder.
    module.__dict__[_TEST_DATA] = Path(_home(), ".tvm_test_data")


@contextmanager
def _without_home(_: ModuleType) -> Iterator[None]:
    if _home() != "~":
        yield
        return
    with _with_variable("HOME", "/"):  # the module only makes a path of it
        yield


def _home() -> str:
    """The user's home; "~": there is none, for which Path.expanduser would fail."""
    return os.path.expanduser("~")  # noqa: PTH111


def quicken_tvm_import() -> None:
    """Let TVM be imported in three quarters of the time, unless it is imported already.

    It would list its 4,000 functions for each of 80 modules, and load setuptools to compare
    versions of an NPU's driver.
    """
    on_import("tvm", _listing_functions_once)
    on_import("tvm.relay.op.contrib.ethosn", _without_setuptools)


@contextmanager
def _listing_functions_once(_: ModuleType) -> Iterator[None]:
    listing: list[tuple[ModuleType, Any]] = []

    @contextmanager
    def once(registry: ModuleType) -> Iterator[None]:
        yield
        listing.append((registry, registry.list_global_func_names))
        registry.__dict__[_LISTING] = cache(registry.list_global_func_names)

    on_import("tvm._ffi.registry", once)
    try:
        yield
    finally:
        for registry, own in listing:
            registry.__dict__[_LISTING] = own


@contextmanager
def _without_setuptools(_: ModuleType) -> Iterator[None]:
    if "distutils" in sys.modules:
        yield
        return
    stub: Any = ModuleType(_VERSIONS)
    stub.LooseVersion = lambda version: importlib.import_module(_VERSIONS).LooseVersion(version)
    sys.modules.update({"distutils": ModuleType("distutils"), _VERSIONS: stub})
    try:
        yield
    finally:
        del sys.modules["distutils"], sys.modules[_VERSIONS]


_WITH_DOCSTRINGS = frozenset({"tvm.topi.generic_op_impl"})
"""Modules that format the docstring of a function while they are imported."""
_STRIPS = 2
"""`sys.flags.optimize` from which on docstrings are stripped."""


class _DocstringLoader(SourceFileLoader):
    """Loads a module with its docstrings; never from a file of bytecode, which has none."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        code: CodeType = compile(source, path, "exec", dont_inherit=True, optimize=_STRIPS - 1)
        return code


class _DocstringFinder:
    """Finds the modules that need their docstrings."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _WITH_DOCSTRINGS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _DocstringLoader(name, spec.origin)
        return spec


def keep_docstrings() -> None:
    """Let TVM be imported where Python strips docstrings; elsewhere nothing changes."""
    if sys.flags.optimize >= _STRIPS and _DocstringFinder not in sys.meta_path:
        sys.meta_path.insert(0, _DocstringFinder)
