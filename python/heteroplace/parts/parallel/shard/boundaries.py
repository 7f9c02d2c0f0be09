"""A module for several shards -> the same, its ops ready to be fused into tasks.

A task lies within one layer, so that stages can be cut between layers, and a gradient is made by a
task of its own shard that nothing but updates reads, so that microbatches can add it up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import tvm
from tvm import relay

from heteroplace.parts.parallel.shard.tensors import with_span
from heteroplace.relay.collective_ops import is_collective
from heteroplace.relay.expressions import leaves, post_order, rebuild
from heteroplace.relay.shard_spans import Tag, tag_of
from heteroplace.relay.tasks.fold import children


def with_layers_apart(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with a `stop_fusion` wherever a call reads from another layer.

    before ==> after:

        %1 = nn.dense(%x, %w)   /* layer 0 */      %1 = nn.dense(%x, %w)
        nn.relu(%1)             /* layer 1 */  ==> nn.relu(annotation.stop_fusion(%1))
    """
    main = mod["main"]
    mapped: dict[relay.Expr, relay.Expr] = {}
    stopped: dict[relay.Expr, relay.Expr] = {}
    tags: dict[relay.Expr, Tag | None] = {}

    def stop(value: relay.Expr, tag: Tag) -> relay.Expr:
        """What a call of that tag reads instead of an operand."""
        if isinstance(value, relay.Tuple):
            return relay.Tuple([stop(field, tag) for field in value.fields], value.span)
        source = value.tuple_value if isinstance(value, relay.TupleGetItem) else value
        before = tags.get(source)
        if before is None or before.shard is None or before.layer == tag.layer:
            return mapped[value]
        if value not in stopped:
            call = relay.annotation.stop_fusion(mapped[value])
            stopped[value] = with_span(call, before.span(before.shard))
        return stopped[value]

    def apart(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        tag = tags[old] = tag_of(old) if isinstance(old, relay.Call) else None
        if tag is None or tag.shard is None:
            return new
        arguments = [stop(argument, tag) for argument in old.args]
        return relay.Call(new.op, arguments, new.attrs, new.type_args, new.span)

    rebuild(post_order(main.body), mapped, apart)
    return _typed(main, mapped)


def with_own_gradients(mod: tvm.IRModule, gradients: Sequence[Sequence[int]]) -> tvm.IRModule:
    """Return the module with a copy, for updates, of gradients that they have not to themselves.

    Those are made by collectives, are fields of tuples, or are read to compute other gradients too.

    Parameters
    ----------
    gradients
        For each weight the outputs that are its gradients, in the order of the shards; and the
        first output, the loss, which is added up as they are.
    """
    main = mod["main"]
    outputs = leaves(main.body)
    nodes = post_order(main.body)
    shard_of = {at: shard for each in gradients for shard, at in enumerate(each)}
    outputs_needed = {value for at, value in enumerate(outputs) if at in shard_of or not at}
    others = _leading_to(outputs_needed, nodes[:-1])
    readers = {child for node in others for child in children(node)}
    shared = {
        value
        for value in (outputs[at] for at in shard_of)
        if not isinstance(value, relay.Call) or is_collective(value) or value in readers
    }
    mapped: dict[relay.Expr, relay.Expr] = {}
    copies: dict[tuple[relay.Expr, int | None], relay.Expr] = {}

    def copy(value: relay.Expr, shard: int | None) -> relay.Expr:
        if (value, shard) not in copies:
            source = value.tuple_value if isinstance(value, relay.TupleGetItem) else value
            tag = tag_of(source) or Tag(0, True, "")
            copies[value, shard] = with_span(relay.copy(mapped[value]), tag.span(shard))
        return copies[value, shard]

    def owned(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        tag = tag_of(old) if isinstance(old, relay.Call) else None
        if tag is None or old in others:
            return new
        pairs = zip(old.args, new.args, strict=True)
        arguments = [copy(value, tag.shard) if value in shared else same for value, same in pairs]
        return relay.Call(new.op, arguments, new.attrs, new.type_args, new.span)

    rebuild(nodes[:-1], mapped, owned)
    results = [
        copy(value, shard_of[at]) if at in shard_of and value in shared else mapped[value]
        for at, value in enumerate(outputs)
    ]
    mapped[main.body] = relay.Tuple(results)
    return _typed(main, mapped)


def _leading_to(values: Collection[relay.Expr], nodes: Sequence[relay.Expr]) -> set[relay.Expr]:
    """The expressions that any of `values` is computed from, they themselves included."""
    before = set(values)
    for node in reversed(nodes):
        if node in before:
            before.update(children(node))
    return before


def _typed(main: relay.Function, mapped: dict[relay.Expr, relay.Expr]) -> tvm.IRModule:
    function = relay.Function(main.params, mapped[main.body], attrs=main.attrs)
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))
