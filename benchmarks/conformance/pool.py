"""Cases -> rows, in processes that may die."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

from benchmarks.conformance import worker
from benchmarks.conformance.cases import Case

Row = dict[str, object]

_STOP_S = 5.0


def run_cases(
    cases: Sequence[Case],
    num_workers: int,
    limit_s: float,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Row]:
    """Run every case in one of several processes; yield a row for each, in their order.

    Parameters
    ----------
    limit_s
        A case that takes longer is too slow, and its process is ended.
    say
        Called from several threads, with a line for each case that is neither equal nor refused.

    Yields
    ------
    "case", "op", "result" and "reason".
    """
    # As many as workers: each takes one for a case; one that died, or was never there, is None.
    idle: SimpleQueue[_Process | None] = SimpleQueue()

    def check(case: Case) -> Row:
        process = idle.get()
        try:
            process = process or _Process()
            result, reason = process.check(case, limit_s)
        finally:
            idle.put(None if process is None or process.is_dead else process)
        if result not in (worker.EQUAL, worker.REFUSED):
            say(f"{case.name}: {result}: {reason}")
        return {"case": case.name, "op": case.op, "result": result, "reason": reason}

    with ThreadPoolExecutor(num_workers) as pool:
        for _ in range(num_workers):
            idle.put(None)
        yield from pool.map(check, cases)
    while not idle.empty():
        if (process := idle.get()) is not None:
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
        """Run one case there; a worker that dies is a crash; one that takes too long is ended."""
        self._connection.send(case)
        if not self._connection.poll(limit_s):
            self._end()
            return worker.TOO_SLOW, f"ran for more than {limit_s:g} s"
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
