"""Programs of ours that run beside what is measured."""

from __future__ import annotations

import threading

from heteroplace.native.execute import Executor as NativeExecutor

_RUNS = 4
"""Between two looks at whether they are still needed."""


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
        self._started.release()
        while not self._is_over.is_set():
            executor.benchmark(_RUNS)

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
