"""`tvmc compile --tuning-records FILE`: schedules that TVM's tuners found, for placed models too.

As TVM's driver does, records of auto_scheduler are told from those of autotvm by reading them; but
a file that is missing or holds neither is an error. Kernels that are compiled by records are other
kernels, with costs of their own in the store. Loaded by `tvmc_compile.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tvm import auto_scheduler, autotvm
from tvm._ffi.base import TVMError

from heteroplace.cli.tvmc_plugin.tvmc_errors import LOADER_ERRORS, one_line
from heteroplace.errors import HeteroPlaceError

USE_AUTO_SCHEDULER = "relay.backend.use_auto_scheduler"
"""Key of a PassContext's config that schedules by records of auto_scheduler."""


@contextmanager
def tuned(path: str) -> Iterator[dict[str, object]]:
    """Let kernels be compiled by the records in a file inside the block.

    Parameters
    ----------
    path
        Records of autotvm or auto_scheduler; "": there are none.

    Yields
    ------
    config
        What the PassContext's config must hold besides.

    Raises
    ------
    HeteroPlaceError
        The file is missing, or holds no records.
    """
    if not path:
        yield {}
        return
    if not Path(path).is_file():
        raise HeteroPlaceError(
            f"--tuning-records {path}: no such file; give what `tvmc tune` wrote"
        )
    if _is_of_auto_scheduler(path):
        with auto_scheduler.ApplyHistoryBest(path):
            yield {USE_AUTO_SCHEDULER: True}
        return
    try:
        records = list(autotvm.record.load_from_file(path))
    except LOADER_ERRORS as err:
        raise HeteroPlaceError(
            f"--tuning-records {path}: cannot be read: {one_line(err)}; give what `tvmc tune` wrote"
        ) from err
    if not records:
        raise HeteroPlaceError(f"--tuning-records {path}: holds no records; run `tvmc tune` again")
    with autotvm.apply_history_best(records):
        yield {}


def _is_of_auto_scheduler(path: str) -> bool:
    """Whether TVM's auto_scheduler reads the file, and finds records in it."""
    try:
        return bool(list(auto_scheduler.load_records(path)))
    except TVMError:
        return False
