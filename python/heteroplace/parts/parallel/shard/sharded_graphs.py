"""A Relay module -> its shards as tasks: a `ShardedGraph`, and the network behind it.

The module is prepared first, without regard to shards, so that no pass merges what two shards
compute alike; then its axes are cut (`module.py`), its ops fused, and each fused group, which lies
within a shard and a layer, is a task. A collective is a task of its own.

Weights that are parameters are not read as inputs by a graph for inference: they belong to the
tasks that read them, which name them, as do transposes and the like of them, which are computed
when weights are bound. In a graph for training they are state: shared inputs, which are updated;
tasks that make their gradients add up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relay

from heteroplace.parts.parallel.shard.boundaries import with_layers_apart, with_own_gradients
from heteroplace.parts.parallel.shard.module import ShardedModule, shard_module
from heteroplace.parts.parallel.training.step import TrainingStep
from heteroplace.parts.parallel.transforms.builder import ShardedBuilder, TaskEntry, TensorEntry
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.relay.cache.expanded import Expanded
from heteroplace.relay.expressions import post_order_of_function
from heteroplace.relay.parameters import bound_main
from heteroplace.relay.products import without_transposes
from heteroplace.relay.recurrent.unrolled import Unrolled
from heteroplace.relay.shard_spans import Tag, tag_of
from heteroplace.relay.tasks.extract import Extraction, extract, neutral_module
from heteroplace.relay.tasks.network import Network
from heteroplace.relay.tasks.prepare import prepare


@dataclass(frozen=True)
class ShardedNetwork:
    """A network cut into lanes: the graph that plans are made of, and what is compiled."""

    sharded: ShardedGraph
    network: Network | None
    """Of the same tasks; None: weights are parameters, so that it can be planned only."""
    module: ShardedModule
    """The prepared module, its ops not fused."""


def shard_network(
    mod: tvm.IRModule,
    params: Mapping[str, tvm.nd.NDArray] | None = None,
    *,
    tensor: int,
    inputs: Collection[str] | None = None,
    uneven: bool | None = None,
    name: str = "model",
) -> ShardedNetwork:
    """Prepare a network for inference, cut it into lanes and these into tasks.

    Parameters
    ----------
    mod, params, tensor, inputs, uneven
        As of `shard_module`; the opt level is that of the current PassContext.
    name
        Of the task graph.

    Raises
    ------
    UnsupportedRelayError, ShardingError
        As `shard_module`.
    """
    prepared = prepared_network(mod, params)
    return shard_prepared(prepared, tensor=tensor, inputs=inputs, uneven=uneven, name=name)


def prepared_network(
    mod: tvm.IRModule, params: Mapping[str, tvm.nd.NDArray] | None = None
) -> tvm.IRModule:
    """Return what `shard_prepared` cuts into any number of lanes."""
    bound = bound_main(mod, params or {})
    return prepare(Expanded()(Unrolled()(tvm.IRModule.from_expr(bound))))


def shard_prepared(
    prepared: tvm.IRModule,
    *,
    tensor: int,
    inputs: Collection[str] | None = None,
    uneven: bool | None = None,
    name: str = "model",
) -> ShardedNetwork:
    """Cut a prepared network into lanes and these into tasks; see `shard_network`."""
    module = shard_module(prepared, tensor=tensor, inputs=inputs, uneven=uneven)
    extraction = extract(with_layers_apart(module.mod), name)
    weights = {part for weight in module.weights for part in weight.parts}
    maker = _Maker(extraction, module)
    sharded = maker.run(weights, {}, frozenset())
    network = None if weights else maker.network(sharded)
    return ShardedNetwork(sharded, network, module)


def shard_training(
    step: TrainingStep, *, tensor: int, uneven: bool | None = None, name: str = "step"
) -> ShardedNetwork:
    """Prepare a step of training for one microbatch, cut it into lanes and these into tasks.

    Weights and whatever else a step replaces are state of each lane, a part or all of it; gradients
    and the loss are what microbatches add up. The loss is the only output of the graph; the
    module's are the loss, and for each lane its new states and gradients.

    Raises
    ------
    UnsupportedRelayError, ShardingError
        As `shard_module`.
    """
    return shard_prepared_step(step, prepared_step(step), tensor=tensor, uneven=uneven, name=name)


def prepared_step(step: TrainingStep) -> tvm.IRModule:
    """Return what `shard_prepared_step` cuts into any number of lanes."""
    return without_transposes(prepare(step.module_with_gradients))


def shard_prepared_step(
    step: TrainingStep,
    prepared: tvm.IRModule,
    *,
    tensor: int,
    uneven: bool | None = None,
    name: str = "step",
) -> ShardedNetwork:
    """Cut a prepared step into lanes and these into tasks; see `shard_training`."""
    states, first = step.state, 1 + len(step.state)
    like = {1 + index: state for index, state in enumerate(states)}
    like |= {first + index: weight for index, weight in enumerate(step.weights)}
    parameters = [parameter.name_hint for parameter in prepared["main"].params]
    inputs = set(parameters) - set(states)
    module = shard_module(prepared, tensor=tensor, inputs=inputs, like=like, uneven=uneven)
    gradients = module.outputs[first:]
    sums = (*gradients, module.outputs[0])
    module = replace(module, mod=with_own_gradients(module.mod, sums))
    extraction = extract(with_layers_apart(module.mod), name)
    outputs = [extraction.graph.tensors[tensor].name for tensor in extraction.graph.outputs]
    updates: dict[str, str] = {}
    for weight in module.weights:
        new = module.outputs[1 + states.index(weight.name)]
        updates |= zip(weight.parts, (outputs[output] for output in new), strict=True)
    maker = _Maker(extraction, module)
    sharded = maker.run(
        frozenset(), updates, {outputs[output] for each in sums for output in each}, outputs[:1]
    )
    return ShardedNetwork(sharded, maker.network(sharded), module)


def tags_of_tasks(extraction: Extraction) -> list[Tag]:
    """Return where each task belongs: as its calls, to the last of their layers."""
    return [_tag_of_task(call) for call in extraction.calls]


def _tag_of_task(call: relay.Call) -> Tag:
    nodes = post_order_of_function(call.op)
    tags = [tag_of(node) for node in nodes if isinstance(node, relay.Call)]
    known_tags = [tag for tag in tags if tag is not None]
    assert known_tags  # each call was given one
    shards = {tag.shard for tag in known_tags}
    assert len(shards) == 1, f"a task of several shards: {sorted(map(str, shards))}"
    backward = [tag for tag in known_tags if tag.backward]
    if backward:  # which goes from the last layer to the first
        return Tag(min(tag.layer for tag in backward), True, "", known_tags[0].shard)
    return Tag(max(tag.layer for tag in known_tags), False, "", known_tags[0].shard)


class _Maker:
    """Puts the tasks of a module into a builder of sharded graphs."""

    def __init__(self, extraction: Extraction, module: ShardedModule) -> None:
        self._extraction = extraction
        self._graph = extraction.graph
        self._module = module
        self._tags = tags_of_tasks(extraction)
        self._builder = ShardedBuilder(extraction.graph.name, module.num_shards, module.num_layers)
        self._weights: dict[str, int] = {}
        """Bytes of the tensors that are weights, which no task of the graph makes."""

    def run(
        self,
        weights: Collection[str],
        updates: Mapping[str, str],
        sums: Collection[str],
        outputs: Sequence[str] | None = None,
    ) -> ShardedGraph:
        """Return the graph.

        Parameters
        ----------
        weights
            Inputs that belong to the tasks that read them.
        updates
            For each input that is state the tensor that replaces it.
        sums
            Tensors that are added up.
        outputs
            Those of the graph; None: all of the module.
        """
        builder, graph = self._builder, self._graph
        for tensor in graph.inputs:
            entry = graph.tensors[tensor]
            if entry.name in weights:
                self._weights[entry.name] = entry.bytes
            else:
                builder.add_input(entry.name, entry.shape, entry.dtype, entry.name in updates)
        shared = set(updates)
        for task in range(len(graph.tasks)):
            self._add(task, shared, sums, bool(updates))
        builder.updates |= updates
        names = [graph.tensors[tensor].name for tensor in graph.outputs]
        builder.outputs = list(names if outputs is None else outputs)
        self._tell_whole(weights)
        return builder.finalize()

    def network(self, sharded: ShardedGraph) -> Network:
        """Return what is compiled for the tasks of the graph, which `run` has made."""
        graph, tags = self._graph, self._tags
        ends = {
            task
            for task, after in enumerate(graph.successors)
            if any(tags[other].layer != tags[task].layer for other in after)
        }
        extraction = replace(self._extraction, graph=sharded.graph)
        return Network(sharded.graph, neutral_module(extraction, ends), extraction)

    def _add(
        self, task_id: int, shared: set[str], sums: Collection[str], is_training: bool
    ) -> None:
        graph, tag = self._graph, self._tags[task_id]
        task = graph.tasks[task_id]
        reads = [graph.tensors[tensor].name for tensor in graph.task_inputs[task_id]]
        outputs = [graph.tensors[tensor] for tensor in graph.task_outputs[task_id]]
        if tag.shard is None:
            # A graph keeps no other order of what a collective reads than that of tensor ids.
            shards = [self._shard_of(tensor) for tensor in graph.task_inputs[task_id]]
            assert shards == list(range(self._module.num_shards)), f"{task.name}: {shards}"
        if reads and self._weights.keys() >= set(reads):
            self._weights |= {tensor.name: tensor.bytes for tensor in outputs}
            return  # computed when weights are bound
        own = [(name, self._weights[name]) for name in reads if name in self._weights]
        adds = any(tensor.name in sums for tensor in outputs)
        # What depends on nothing but state and sums is computed once for all microbatches.
        is_shared = is_training and shared >= set(reads)
        if adds or is_shared:
            shared.update(tensor.name for tensor in outputs)
        entry = replace(task, weights=tuple(own), adds=adds)
        values_read = tuple(name for name in reads if name not in self._weights)
        self._builder.add_task(TaskEntry(entry, values_read, tag.layer, tag.shard, tag.backward))
        for tensor in outputs:
            name, size = tensor.name, tensor.bytes
            self._builder.add_tensor(
                TensorEntry(name, task.name, tensor.shape, tensor.dtype, size, name in shared)
            )

    def _shard_of(self, tensor: int) -> int:
        """The shard that has a tensor which the shards have one each of."""
        tensor_record = self._graph.tensors[tensor]
        tag = None if tensor_record.producer is None else self._tags[tensor_record.producer]
        return tensor_record.index if tag is None or tag.shard is None else tag.shard

    def _tell_whole(self, weights: Collection[str]) -> None:
        """Which inputs stand for which of the network before."""
        parts = {part for weight in self._module.weights for part in weight.parts}
        for tensor in self._graph.inputs:
            name = self._graph.tensors[tensor].name
            if name not in parts:
                self._builder.add_whole(name, (name,))
        for weight in self._module.weights:
            if not set(weights) & set(weight.parts):
                self._builder.add_whole(weight.name, weight.parts, weight.axis, weight.blocks)
