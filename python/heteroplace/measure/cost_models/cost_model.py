"""What a cost model is, and the models by name.

They stand above `measure` and not in `costs`, as most of them run kernels, and all of them decide
whether the scratch memory of kernels is known when a network is placed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from heteroplace.entries import load_entry
from heteroplace.errors import CostStoreUnavailableError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.machine.usage import QUIET_CORES
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.place_options import (
    COST_MODELS,
    STORE_OFF,
    STORE_ON,
    CostSource,
    cost_model_names,
)
from heteroplace.registry import load_plugin

if TYPE_CHECKING:
    from heteroplace.costs.optional_store import OptionalStore
    from heteroplace.simulate.interference import Interference
    from heteroplace.stage_log import Progress

_LOG = logging.getLogger("heteroplace")
_TABLE = "heteroplace.measure.cost_models.table:GivenCosts"
_STORE = "heteroplace.costs.optional_store:OptionalStore"
_FIND_INTERFERENCE = "heteroplace.measure.measured_interference:find_interference"
"""Loaded when costs are stored or measured."""


@dataclass(frozen=True)
class CostOptions:
    """What the models are told."""

    store: str | os.PathLike[str] | None = None
    """Of measured kernels: STORE_ON, the user's; a path; STORE_OFF or None: everything is
    measured."""
    progress: Progress | None = None
    """Takes stages as text; a `StageLog` takes counts too."""
    missing: str = "refuse"
    """What to do about costs that a given table does not know, one of MISSING."""
    store_failures: list[CostStoreUnavailableError] = field(default_factory=list, compare=False)
    """Why the store is not used any more; empty: it is."""
    disturbances: list[float] = field(default_factory=list, compare=False)
    """Cores that other programs used, at most, during each profiling so far."""

    @property
    def others_cores(self) -> float:
        """How many cores other programs used while costs were measured, at most; 0: too few to
        disturb what is measured, or nothing was measured."""
        most = max(self.disturbances, default=0.0)
        return most if most > QUIET_CORES else 0.0

    @contextmanager
    def open_store(self) -> Iterator[OptionalStore | None]:
        """Open the store; None: there is none, or it cannot be used now, which is logged once.

        Raises
        ------
        CostStoreError
            The file is no store, is damaged, or is of a newer version.
        """
        store = self._opened()
        try:
            yield store
        finally:
            if store is not None:
                store.close()

    def _opened(self) -> OptionalStore | None:
        if self.store is None or self.store == STORE_OFF or self.store_failures:
            return None
        store_type: type[OptionalStore] = load_entry(_STORE)
        try:
            return store_type(None if self.store == STORE_ON else self.store, self._go_without)
        except CostStoreUnavailableError as err:
            self._go_without(err)
            return None

    def _go_without(self, err: CostStoreUnavailableError) -> None:
        self.store_failures.append(err)
        _LOG.warning("%s. Measured costs are not stored, and are measured again next time", err)


class CostModel(Protocol):
    """Says what each task of a network costs on each device."""

    options: CostOptions
    has_interference: bool
    """Its costs are measured in place on this machine, so interference can be measured too."""

    @property
    def finds_interference(self) -> bool:
        """Whether the store may know it otherwise: `prepare` compiles the kernels, by which it is
        found, and times that were measured were measured in place."""

    def prepare(self, compiled: CompiledNetwork, cluster: Cluster) -> CompiledNetwork:
        """Return the network with what must be known of its tasks before they are costed.

        Raises
        ------
        MissingCostError, LoweringError
            Kernels are needed, and a device is not here or an op cannot be compiled.
        """

    def costs(
        self, compiled: CompiledNetwork, cluster: Cluster, batches: Sequence[int] = (1,)
    ) -> CostTable:
        """Return the costs of what `prepare` returned, for so many items run together each.

        A given table keeps its own batch sizes.

        Raises
        ------
        MissingCostError, CostMismatchError, LoweringError, ExecutionError, CostStoreError
            A cost cannot be had; see each model.
        UnsupportedRelayError
            Batches are measured, and an op could mix their items.
        """


def choose_cost_model(source: CostSource, options: CostOptions) -> CostModel:
    """Return the cost model that a caller means.

    Raises
    ------
    PluginError
        The package that registers it cannot be loaded.
    """
    if not (isinstance(source, str) and source in cost_model_names()):
        make = load_entry(_TABLE)
    elif source in COST_MODELS:
        make = load_entry(COST_MODELS[source])
    else:
        make = load_plugin("cost_models", source)
    model: CostModel = make(options, source)
    return model


def known_interference(
    model: CostModel, compiled: CompiledNetwork, cluster: Cluster, costs: CostTable
) -> Callable[[], Interference] | None:
    """Return what the store knows of how the tasks of a network slow each other; None: nothing.

    Parameters
    ----------
    costs
        Of `model`. Beside times that nobody measured, what is measured says nothing.

    Raises
    ------
    CostStoreError
        The store cannot be used, or what it holds is damaged.
    """
    if not (model.finds_interference and costs.is_measured):
        return None
    with model.options.open_store() as store:
        interference: Interference | None = load_entry(_FIND_INTERFERENCE)(compiled, cluster, store)
    return None if interference is None else partial(_same, interference)


def _same(interference: Interference) -> Interference:
    return interference
