"""A Relay module -> its shards and its step of training, for any number of lanes and rows.

A module holds some rows of its inputs along their first axis (one, as it is best imported); a
microbatch of more has them by `rebatch`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import tvm

from heteroplace.costs.roofline import Speeds
from heteroplace.errors import ShardingError
from heteroplace.lower.compile import CompiledNetwork
from heteroplace.measure.peak_speeds import measure_speeds
from heteroplace.model.cluster import Cluster
from heteroplace.parts.parallel.collectives.joined_sums import JoinableSums
from heteroplace.parts.parallel.shard.sharded_graphs import (
    ShardedNetwork,
    prepared_network,
    prepared_step,
    shard_prepared,
    shard_prepared_step,
)
from heteroplace.parts.parallel.sharding.collective_groups import CollectiveTimes
from heteroplace.parts.parallel.sharding.inner_values import TaskMemory, task_memories
from heteroplace.parts.parallel.sharding.rank_candidates import candidate_names
from heteroplace.parts.parallel.sharding.shard_costs import (
    MeasuredNetwork,
    compiled_alone,
    measure_network,
    with_scratch_of,
)
from heteroplace.parts.parallel.sharding.shard_options import ShardOptions
from heteroplace.parts.parallel.training.optimizers import parse_optimizer
from heteroplace.parts.parallel.training.step import TrainingStep, training_step
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.relay.expressions import static_shape, tensor_types
from heteroplace.relay.module_source import source_attribute
from heteroplace.relay.output_names import read_output_names
from heteroplace.relay.parameters import check_params
from heteroplace.relay.tasks.network import module_digest
from heteroplace.relay.tasks.rebatch import rebatch

_MeasuredKey = tuple[int, int, int, str]
"""Lanes, rows, batch, digest of the cluster."""


class ModelSource:
    """Makes and measures what is asked of one model, once. Not thread-safe.

    Parameters
    ----------
    mod, params
        Module of one function `main`, its inputs with the rows along axis 0; its weights, if they
        are not bound. The opt level is that of the current PassContext.
    options
        Whether to train and how, and what to do about uneven heads.

    Raises
    ------
    ShardingError
        Inputs have different numbers of rows, or weights of a network to train are bound.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        params: Mapping[str, tvm.nd.NDArray | np.ndarray] | None,
        options: ShardOptions,
        name: str = "model",
    ) -> None:
        check_params(mod, {} if params is None else params)
        self.imported_from = None if options.is_training else source_attribute(mod)
        """What the part that imported the module noted of its source; None: nothing."""
        self.output_names = () if options.is_training else read_output_names(mod)
        """Those of the imported model; empty: it has none, or it is trained."""
        self.mod = tvm.relay.transform.InferType()(mod)
        self.params = {key: _nd(value) for key, value in (params or {}).items()}
        self.name = name
        self._options = options
        self.inputs = {
            parameter.name_hint: static_shape(tensor_types(parameter.checked_type)[0])
            for parameter in self.mod["main"].params
            if parameter.name_hint not in self.params
        }
        """Shapes of what is no weight."""
        self.own_rows = self._own_rows()
        self._networks: dict[tuple[int, int, int], ShardedNetwork] = {}
        self._measured: dict[_MeasuredKey, MeasuredNetwork] = {}
        self._alone: dict[_MeasuredKey, CompiledNetwork] = {}
        self._joinable: dict[tuple[int, int, int], frozenset[str]] = {}
        self._steps: dict[tuple[int, int], TrainingStep] = {}
        self.collective_times = CollectiveTimes()
        self._speeds: dict[str, dict[str, Speeds]] = {}
        self._prepared: dict[tuple[int, int], tvm.IRModule] = {}
        """By rows of a microbatch and of the batch; any number of lanes is cut out of each."""
        if options.is_training and not self.params:
            raise ShardingError(
                "there is nothing to train: the weights are bound into the module, or it has none; "
                "give them by params="
            )

    def _own_rows(self) -> int:
        rows = {shape[0] if shape else 0 for shape in self.inputs.values()}
        if len(rows) != 1 or 0 in rows:
            listed = ", ".join(f"{name} {list(shape)}" for name, shape in self.inputs.items())
            raise ShardingError(
                f"inputs {listed or 'none'}: expected tensors of one number of rows along axis 0, "
                f"which a batch is cut along; name all weights in params="
            )
        return rows.pop()

    @cached_property
    def digest(self) -> str:
        """What equal models that are trained alike have in common, in hex."""
        options = self._options
        own = (module_digest(self.mod), options.optimizer, options.loss, options.prediction)
        text = repr((own, sorted(self.params), options.uneven))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def graph(self, lanes: int, rows: int, batch: int) -> ShardedGraph:
        """Return the graph of one replica: a source for `transforms.search`."""
        return self.network(lanes, rows, batch).sharded

    def network(self, lanes: int, rows: int, batch: int) -> ShardedNetwork:
        """Return the network of one replica for a microbatch.

        Parameters
        ----------
        lanes, rows, batch
            Shards; rows of a microbatch; rows of the whole batch, by which a loss is divided.

        Raises
        ------
        ShardingError
            The module holds rows that do not divide those of a microbatch.
        UnsupportedRelayError, TrainingError
            As `shard_network` and `training_step`.
        """
        key = self._key(lanes, rows, batch)
        if key not in self._networks:
            self._networks[key] = self._made(lanes, rows, batch)
        return self._networks[key]

    def measured(
        self, lanes: int, rows: int, cluster: Cluster, options: ShardOptions
    ) -> MeasuredNetwork:
        """Return what the kernels of a network take, all of it on each device of a cluster.

        Raises
        ------
        HeteroPlaceError
            As `network` and `measure_network`.
        """
        key = (*self._key(lanes, rows, options.batch), cluster.digest())
        if key not in self._measured:
            network = self.network(lanes, rows, options.batch)
            alone = self._compiled_alone(lanes, rows, options.batch, cluster)
            options.say(f"Measuring the kernels of {lanes} lanes, {rows} rows")
            self._measured[key] = measure_network(network, alone, cluster, options)
        return self._measured[key]

    def with_scratch(self, lanes: int, rows: int, batch: int, cluster: Cluster) -> ShardedGraph:
        """Return the graph of one replica, whose tasks say the scratch memory of their kernels.

        Raises
        ------
        HeteroPlaceError
            As `network` and `compiled_alone`.
        """
        alone = self._compiled_alone(lanes, rows, batch, cluster)
        return with_scratch_of(self.network(lanes, rows, batch).sharded, alone)

    def task_memories(
        self, lanes: int, rows: int, batch: int, cluster: Cluster
    ) -> dict[str, TaskMemory]:
        """Return what the tasks of one replica hold beside their tensors, by name.

        Raises
        ------
        HeteroPlaceError
            As `network` and `compiled_alone`.
        """
        return task_memories(self._compiled_alone(lanes, rows, batch, cluster), cluster)

    def peak_speeds(self, cluster: Cluster) -> dict[str, Speeds]:
        """Return the measured speeds of those ranks of which a cluster does not say them."""
        key = cluster.digest()
        if key not in self._speeds:
            names = candidate_names(cluster, self._options)
            self._speeds[key] = measure_speeds(cluster, names, self._options.progress)
        return self._speeds[key]

    def joinable(self, lanes: int, rows: int, batch: int) -> frozenset[str]:
        """Return the tasks of one replica that can sum over several microbatches at once, by name.

        Raises
        ------
        HeteroPlaceError
            As `network`.
        """
        key = self._key(lanes, rows, batch)
        if key not in self._joinable:
            network = self.network(lanes, rows, batch)
            assert network.network is not None  # weights are bound, or state
            self._joinable[key] = JoinableSums(network.network.mod, network.sharded.graph).names
        return self._joinable[key]

    def _compiled_alone(
        self, lanes: int, rows: int, batch: int, cluster: Cluster
    ) -> CompiledNetwork:
        key = (*self._key(lanes, rows, batch), cluster.digest())
        if key not in self._alone:
            names = candidate_names(cluster, self._options)
            self._alone[key] = compiled_alone(self.network(lanes, rows, batch), cluster, names)
        return self._alone[key]

    def _key(self, lanes: int, rows: int, batch: int) -> tuple[int, int, int]:
        return lanes, rows, batch if self._options.is_training else rows

    def step(self, rows: int, batch: int) -> TrainingStep:
        """Return the step of training of one microbatch, not cut into lanes."""
        if (rows, batch) not in self._steps:
            assert self._options.optimizer is not None
            optimizer = parse_optimizer(self._options.optimizer)
            self._steps[rows, batch] = training_step(
                self._of_rows(rows),
                self.params,
                self._options.loss,
                optimizer,
                batch=batch,
                items=rows,
                output=self._options.prediction,
            )
        return self._steps[rows, batch]

    def state(self, lanes: int, rows: int, batch: int) -> dict[str, np.ndarray]:
        """Return what the lanes' state of a step is at first, by name; {}: there is none."""
        if not self._options.is_training:
            return {}
        values = self.step(rows, batch).values
        weights = self.network(lanes, rows, batch).module.weights
        return {
            part: weight.part(values[weight.name].numpy(), shard)
            for weight in weights
            for shard, part in enumerate(weight.parts)
        }

    def _made(self, lanes: int, rows: int, batch: int) -> ShardedNetwork:
        uneven = True if self._options.uneven else None
        prepared = self._prepared_for(rows, batch)
        if self._options.is_training:
            step = self.step(rows, batch)
            return shard_prepared_step(step, prepared, tensor=lanes, uneven=uneven, name=self.name)
        return shard_prepared(prepared, tensor=lanes, uneven=uneven, name=self.name)

    def _prepared_for(self, rows: int, batch: int) -> tvm.IRModule:
        key = (rows, batch if self._options.is_training else rows)
        if key not in self._prepared:
            self._prepared[key] = (
                prepared_step(self.step(rows, batch))
                if self._options.is_training
                else prepared_network(self._of_rows(rows), self.params)
            )
        return self._prepared[key]

    def _of_rows(self, rows: int) -> tvm.IRModule:
        count, rest = divmod(rows, self.own_rows)
        if rest or not count:
            raise ShardingError(
                f"the module holds {self.own_rows} rows, and microbatches of {rows} cannot be made "
                f"of it; import the model with a batch of 1 (input_shapes=...)"
            )
        return rebatch(self.mod, count, list(self.inputs), self.own_rows)


def _nd(value: tvm.nd.NDArray | np.ndarray) -> tvm.nd.NDArray:
    return value if isinstance(value, tvm.nd.NDArray) else tvm.nd.array(value)
