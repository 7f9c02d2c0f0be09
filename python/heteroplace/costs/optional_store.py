"""A store of measured kernels that only saves time: a caller goes on where it cannot be used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from heteroplace.costs.interference_records import InterferenceKey, InterferenceRecord
from heteroplace.costs.measurement import Measurement
from heteroplace.costs.store import CostStore
from heteroplace.costs.store_values import Row
from heteroplace.errors import CostStoreUnavailableError
from heteroplace.files.measurements import KernelKey, Note

Report = Callable[[CostStoreUnavailableError], None]


class OptionalStore(CostStore):
    """A store in which nothing is looked up or stored once the disk is full or it stays locked.

    The first failure is reported; a damaged or foreign store is still an error.
    """

    def __init__(self, path: str | os.PathLike[str] | None, report: Report) -> None:
        """Open the store as `CostStore` does; `report` takes the failure that ends its use."""
        self._report = report
        self._is_usable = True
        super().__init__(path)

    @contextmanager
    def optional(self) -> Iterator[None]:
        """Leave the block, after a report, where it finds that the store cannot be used."""
        try:
            yield
        except CostStoreUnavailableError as err:
            if self._is_usable:
                self._is_usable = False
                self._report(err)

    def add_many(self, rows: Iterable[Row], notes: Iterable[Note] = ()) -> int:
        """Store all of them or none; see `CostStore.add_many`."""
        if self._is_usable:
            with self.optional():
                return super().add_many(rows, notes)
        return 0

    def find_many(self, keys: Iterable[KernelKey]) -> dict[KernelKey, Measurement]:
        """Return the measurements of some keys; see `CostStore.find_many`."""
        if self._is_usable:
            with self.optional():
                return super().find_many(keys)
        return {}

    def add_interference(self, key: InterferenceKey, record: InterferenceRecord, date: str) -> None:
        """Store a record; see `CostStore.add_interference`."""
        if self._is_usable:
            with self.optional():
                super().add_interference(key, record, date)

    def find_interference(self, key: InterferenceKey, num_tasks: int) -> InterferenceRecord | None:
        """Return a record; see `CostStore.find_interference`."""
        if self._is_usable:
            with self.optional():
                return super().find_interference(key, num_tasks)
        return None
