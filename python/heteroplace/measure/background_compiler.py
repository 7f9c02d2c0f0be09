"""Compile what is measured next while something is measured, on cores that are not measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import tvm

from heteroplace.lower.library import KernelLibrary

Compile = Callable[[], KernelLibrary]


class BackgroundCompiler:
    """Makes libraries in order, at most one ahead of the one in use.

    Use it in a `with` block; not thread-safe. The compiling thread has the pass context of the
    thread that made this object (TVM's is one per thread).

    Parameters
    ----------
    compiles
        What makes each library.
    """

    def __init__(self, compiles: Sequence[Compile]) -> None:
        self._compiles = compiles
        self._made: dict[int, Future[KernelLibrary]] = {}
        self._thread = ThreadPoolExecutor(1, "heteroplace-compile")
        self._context = tvm.transform.PassContext.current()
        self._all_cores = os.sched_getaffinity(0)

    def __enter__(self) -> BackgroundCompiler:
        return self

    def __exit__(self, *_exception: object) -> None:
        for future in self._made.values():
            future.cancel()
        self._thread.shutdown(wait=True)

    def library(self, index: int) -> KernelLibrary:
        """Return a library, made now if it is not made yet; raises what its compiler raises."""
        if index not in self._made:
            self._start(index, self._all_cores)
        return self._made[index].result()

    @contextmanager
    def beside(self, index: int, cores: Collection[int]) -> Iterator[None]:
        """Let `cores` be measured with library `index`, while the next one is made on the others.

        If there are no others, nothing is compiled in the block.
        """
        free = self._all_cores - set(cores)
        following = index + 1
        if not free:
            for future in self._made.values():
                future.exception()  # waits; it is raised when its library is asked for
        elif following < len(self._compiles) and following not in self._made:
            self._start(following, free)
        yield

    def keep_only(self, indices: Collection[int]) -> None:
        """Drop all libraries but these and those not asked for yet."""
        for index in [index_made for index_made in self._made if index_made not in indices]:
            del self._made[index]

    def _start(self, index: int, cores: Collection[int]) -> None:
        def compile_there() -> KernelLibrary:
            # Of this thread only, and of the programs that it starts.
            os.sched_setaffinity(0, cores)
            with self._context:
                return self._compiles[index]()

        self._made[index] = self._thread.submit(compile_there)
