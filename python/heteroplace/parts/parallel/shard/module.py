"""A Relay module -> the same for several shards, each of which has a part of every large weight.

DistIR (arXiv 2111.05426), section 4.1, and Megatron-LM (arXiv 1909.08053), section 3, cut the
weights of one layer by columns and of the next by rows; attention is cut by heads. Unlike there,
the network is any that was imported: an axis that is cut at one weight is followed through the ops
until it is added up, or gathered where an op needs all of it.

    before ==> after, for two shards:

        %1 = nn.dense(%x, W)         nn.dense(%x, W[:4])     nn.dense(%x, W[4:])
        %2 = nn.relu(%1)             nn.relu(%1)             nn.relu(%2)
        %3 = nn.dense(%2, V)         nn.dense(%3, V[:, :4])  nn.dense(%4, V[:, 4:])
        add(%3, %b)             ==>  %7 = heteroplace.all_reduce((%5, %6))
                                     add(%7, %b)             (add(%7, %b): no output needs it)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import tvm
from tvm import relay

from heteroplace.errors import ShardingError, UnsupportedRelayError
from heteroplace.parts.parallel.shard.carry import Carrier
from heteroplace.parts.parallel.shard.layers import layers_of
from heteroplace.parts.parallel.shard.sharded_network import read_network
from heteroplace.parts.parallel.shard.sharded_weights import ShardedWeight, depending_on
from heteroplace.parts.parallel.shard.tensors import with_span
from heteroplace.parts.parallel.shard.walk import Sharded, Walk
from heteroplace.relay.collective_ops import is_collective
from heteroplace.relay.expressions import post_order, rebuild, tensor_types
from heteroplace.relay.local_types import collected_diagnostics
from heteroplace.relay.parameters import bound_main


@dataclass(frozen=True)
class ShardedModule:
    """A module for several shards, which stock TVM runs on one device as well."""

    mod: tvm.IRModule
    """Typed; the span of each call says its shard and its layer (`relay/shard_spans.py`)."""
    num_shards: int
    num_layers: int
    """Between which pipeline stages can be cut."""
    weights: tuple[ShardedWeight, ...]
    """What became of the parameters that are weights."""
    outputs: tuple[tuple[int, ...], ...]
    """For each output of the module before, what it became: one, or one for each shard."""
    whole: tuple[str, ...]
    """The products whose weights each shard has all of, since they cannot be cut."""

    @property
    def collectives(self) -> dict[str, int]:
        """How many calls there are of each collective, e.g. {"heteroplace.all_reduce": 4}."""
        counts: dict[str, int] = {}
        for node in post_order(self.mod["main"].body):
            if is_collective(node):
                counts[node.op.name] = counts.get(node.op.name, 0) + 1
        return counts


def shard_module(
    mod: tvm.IRModule,
    params: Mapping[str, tvm.nd.NDArray] | None = None,
    *,
    tensor: int,
    inputs: Collection[str] | None = None,
    like: Mapping[int, str] | None = None,
    uneven: bool | None = None,
) -> ShardedModule:
    """Share the weights of a module between shards, by tensor parallelism.

    Parameters
    ----------
    mod
        Module of one function `main` of plain dataflow with static shapes; for one microbatch.
    params
        Weights to bind, by the name of the parameter; None: none.
    tensor
        Number of shards (T of DistIR), >= 1.
    inputs
        Names of the parameters that are no weights; None: all that are not bound. Weights that
        stay parameters become one parameter for each shard, called "NAME.shard0" and so on.
    like
        Outputs, by position, that stay cut as the weight of that name is: its gradient, or its new
        value. Each becomes an output for each shard. All others are whole.
    uneven
        Whether heads, or other blocks of columns, are shared unevenly where their number is no
        multiple of the shards'. None: that is refused, if it were best. Single columns are always
        shared as evenly as they can be.

    Raises
    ------
    UnsupportedRelayError
        No such parameter or output, control flow, dynamic shapes.
    ShardingError
        Less than one shard; or uneven parts would be best, and `uneven` does not say whether to
        take them.
    """
    main = _bound(mod, params or {})["main"]
    names = [parameter.name_hint for parameter in main.params]
    like = dict(like or {})
    data = set(names if inputs is None else inputs) - set(like.values())
    _check(main, tensor, data, like)
    if tensor == 1:
        sharded = _unshared(main, data, like)
    else:
        with collected_diagnostics([]):
            sharded = Walk(main, tensor, data, like, uneven).run()
    typed = relay.transform.InferType()(tvm.IRModule.from_expr(sharded.main))
    return ShardedModule(
        typed, tensor, sharded.num_layers, sharded.weights, sharded.outputs, sharded.whole
    )


def _bound(mod: tvm.IRModule, params: Mapping[str, tvm.nd.NDArray]) -> tvm.IRModule:
    """The module with its weights bound, and its norms as single ops, each with its own rule."""
    main = bound_main(mod, params)
    passes = [
        relay.transform.InferType(),
        relay.transform.SimplifyInference(),
        relay.transform.InferType(),
    ]
    return tvm.transform.Sequential(passes)(tvm.IRModule.from_expr(main))


def _check(main: relay.Function, tensor: int, inputs: set[str], like: Mapping[int, str]) -> None:
    parameters = {parameter.name_hint: parameter for parameter in main.params}
    if tensor < 1:
        raise ShardingError(f"{tensor} shards; expected 1 or more")
    unknown = sorted((inputs | set(like.values())) - set(parameters))
    if unknown:
        raise UnsupportedRelayError(
            f"the model has no input {', '.join(unknown)}; it has {', '.join(parameters) or 'none'}"
        )
    count = len(tensor_types(main.body.checked_type))
    is_nested = isinstance(main.body, relay.Tuple) and count != len(main.body.fields)
    wrong = sorted(like if is_nested else set(like) - set(range(count)))
    if wrong:
        raise UnsupportedRelayError(f"the model has no outputs {wrong}; it has {count}")
    for name, parameter in parameters.items():
        if not isinstance(parameter.checked_type, relay.TensorType):
            raise UnsupportedRelayError(
                f"input {name!r} of the model has type {parameter.checked_type}; inputs must be "
                f"tensors: pass the fields of a tuple one by one"
            )


def _unshared(main: relay.Function, inputs: set[str], like: Mapping[int, str]) -> Sharded:
    """The same function, with the layers in its spans."""
    nodes = read_network(main)
    free = set(nodes) - depending_on(nodes, inputs)
    tags, num_layers = layers_of(nodes, free, Carrier())
    spans = {node.expr: tags[node].span(0) for node in nodes if node.op}
    mapped: dict[relay.Expr, relay.Expr] = {}

    def tagged(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        return with_span(new, spans[old]) if old in spans else new

    rebuild([node.expr for node in nodes], mapped, tagged)
    function = relay.Function(main.params, mapped[main.body], attrs=main.attrs)
    names = (parameter.name_hint for parameter in main.params)
    weights = tuple(ShardedWeight(name, (name,), None, ()) for name in names if name not in inputs)
    count = len(tensor_types(main.body.checked_type))
    return Sharded(function, weights, tuple((at,) for at in range(count)), (), num_layers)
