"""Cases -> rows, in processes that may die."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from heteroplace.bench.conformance import worker
from heteroplace.bench.conformance.cases import Case

Row = dict[str, object]

_STOP_S = 5.0


def run_cases(
    cases: Sequence[Case],
    num_workers: int,
    limit_s: float,
    say: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Run every case in one of several processes.

    Parameters
    ----------
    limit_s
        A case that takes longer is a crash, and its process is ended.
    say
        Called with a line for each case that is wrong or crashes; from several threads.

    Returns
    -------
    One row for each case, in their order: "case", "op", "result" and "reason".
    """
    results: dict[str, worker.Result] = {}
    remaining = iter(cases)
    lock = threading.Lock()

    def draw() -> Case | None:
        with lock:
            return next(remaining, None)

    def work() -> None:
        for case, result in _results(draw, limit_s):
            results[case.name] = result
            if result[0] in (worker.WRONG, worker.CRASH):
                say(f"{case.name}: {result[0]}: {result[1]}")

    threads = [threading.Thread(target=work) for _ in range(num_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [
        {
            "case": case.name,
            "op": case.op,
            "result": results[case.name][0],
            "reason": results[case.name][1],
        }
        for case in cases
    ]


def _results(
    draw: Callable[[], Case | None], limit_s: float
) -> Iterator[tuple[Case, worker.Result]]:
    """Yield results of the cases that `draw` gives; a process that died is replaced."""
    process: _Process | None = None
    while (case := draw()) is not None:
        if process is None:
            process = _Process()
        result = process.check(case, limit_s)
        yield case, result
        if process.is_dead:
            process = None
    if process is not None:
        process.stop()


class _Process:
    """One worker, from outside."""

    def __init__(self) -> None:
        # Every process is a copy of one that has TVM loaded, and nothing else done.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([worker.__name__])
        self._connection: Connection
        self._connection, far = context.Pipe()
        self._errors = tempfile.NamedTemporaryFile()  # noqa: SIM115  (closed by _end)
        self._process = context.Process(
            target=worker.serve, args=(far, self._errors.name), daemon=True
        )
        self._process.start()
        far.close()  # so that a worker that dies ends the connection
        self.is_dead = False
        self._last_words = ""

    def check(self, case: Case, limit_s: float) -> worker.Result:
        """Run one case there; a worker that dies or takes too long is a crash."""
        self._connection.send(case)
        if not self._connection.poll(limit_s):
            self._end()
            return worker.CRASH, f"ran for more than {limit_s:g} s"
        try:
            result: worker.Result = self._connection.recv()
        except EOFError:
            self._process.join(_STOP_S)
            self._end()
            code = self._process.exitcode
            return worker.CRASH, f"its process died with code {code}: {self._last_words}"
        return result

    def stop(self) -> None:
        """Let the worker end by itself."""
        self._connection.send(None)
        self._process.join(_STOP_S)
        self._end()

    def _end(self) -> None:
        self.is_dead = True
        self._process.kill()
        self._process.join()
        self._connection.close()
        lines = Path(self._errors.name).read_text(errors="replace").strip().splitlines()
        self._last_words = lines[-1] if lines else "without a word"
        self._errors.close()
