"""A thread on some cores, with a pool of TVM's workers there.

TVM keeps a pool of workers for each calling thread, so that two configurations (one core, all
cores) live in one process only if each is called from its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_ONE_CORE_PER_THREAD = -2
"""Mode of TVM's thread pools: the threads are bound to the cores that are listed."""

Result = TypeVar("Result")


class BoundThread:
    """A thread that is allowed on some cores only, and runs what it is given there."""

    def __init__(self, name: str, cores: Sequence[int]) -> None:
        # 0 is the calling thread: the process itself keeps all its cores.
        self._pool = ThreadPoolExecutor(1, name, initializer=lambda: os.sched_setaffinity(0, cores))

    def call(self, function: Callable[..., Result], *args: object) -> Result:
        """Run `function` there, wait for it, and return or raise what it does."""
        return self.submit(function, *args).result()

    def submit(self, function: Callable[..., Result], *args: object) -> Future[Result]:
        """Run `function` there, without waiting for it."""
        return self._pool.submit(function, *args)

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()


def configure_threads(cores: Sequence[int]) -> None:
    """Give TVM's pool of the calling thread one thread for each core.

    Before the first kernel: it would start the pool with all the cores of the machine.
    """
    import tvm  # compiled models run, and are timed, without it

    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(_ONE_CORE_PER_THREAD, len(cores), [str(core) for core in cores])
