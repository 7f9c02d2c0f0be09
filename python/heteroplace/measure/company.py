"""Programs of ours that run beside what is measured."""

from __future__ import annotations

import threading
import time

from heteroplace.native.execute import Executor as NativeExecutor

_LOOK_S = 0.01
"""Time between two checks whether they are still needed; a run is never cut short."""


class Company:
    """Keeps executors running while the block is executed."""

    def __init__(self, executors: list[NativeExecutor]) -> None:
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(executor,)) for executor in executors
        ]
        self._started = threading.Semaphore(0)

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            self._started.acquire()

    def _run(self, executor: NativeExecutor) -> None:
        num_runs = 1
        self._started.release()
        while not self._is_over.is_set():
            begin = time.perf_counter()
            executor.benchmark(num_runs)
            if time.perf_counter() - begin < _LOOK_S / 2:
                num_runs *= 2

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
