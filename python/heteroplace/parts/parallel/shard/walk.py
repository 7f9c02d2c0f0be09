"""A typed function -> the same for several shards: one walk, operands first.

Of each op the way that exchanges least is taken (`ways.py`), of products whose weights are not cut
yet one that was followed down the network (`follow.py`). Each shard gets calls of its own, also of
what all of them compute alike; collectives are calls that all share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tvm import relay

from heteroplace.parts.parallel.shard.carry import Carrier, States, part_call
from heteroplace.parts.parallel.shard.cuts import Cut, Kept, State
from heteroplace.parts.parallel.shard.follow import CutChooser, Network, OpenStates
from heteroplace.parts.parallel.shard.layers import is_weighted, layers_of
from heteroplace.parts.parallel.shard.sharded_network import Node, read_network
from heteroplace.parts.parallel.shard.sharded_weights import (
    ShardedWeight,
    cut_constant,
    cut_parameter,
    depending_on,
    needs_before,
)
from heteroplace.parts.parallel.shard.tensors import Exprs, Leaf, converted, rebuilt, with_span
from heteroplace.parts.parallel.shard.ways import Way, best_way
from heteroplace.relay.shard_spans import Tag


class Sharded(NamedTuple):
    """What a walk made."""

    main: relay.Function
    """Not typed."""
    weights: tuple[ShardedWeight, ...]
    """What became of the parameters that are weights, in order."""
    outputs: tuple[tuple[int, ...], ...]
    """For each output of the function those that it became: one, or one for each shard."""
    whole: tuple[str, ...]
    """The products whose weights could not be shared by the shards."""
    num_layers: int


class Walk:
    """One walk over a function."""

    def __init__(
        self,
        main: relay.Function,
        num_shards: int,
        inputs: set[str],
        like: Mapping[int, str],
        uneven: bool | None,
    ) -> None:
        self._main = main
        self._num_shards = num_shards
        self._inputs = inputs
        self._like = like
        self._nodes = read_network(main)
        self._free = set(self._nodes) - depending_on(self._nodes, inputs)
        weights = {param.name_hint for param in main.params} - inputs
        self._from_parameters = depending_on(self._nodes, weights) & self._free
        self._carrier = Carrier()
        self._tags, self.num_layers = layers_of(self._nodes, self._free, self._carrier)
        self._leaves: dict[Node, list[Leaf]] = {}
        self._readers: dict[Node, list[Node]] = {}
        for node in self._nodes:
            for child in dict.fromkeys(node.children):
                self._readers.setdefault(child, []).append(node)
        self._weights: dict[str, ShardedWeight] = {}
        self._variables: dict[str, list[relay.Var]] = {}
        self._whole: list[str] = []
        named = {
            node.expr.name_hint: node for node in self._nodes if isinstance(node.expr, relay.Var)
        }
        body = self._nodes[-1]
        outputs = body.children if isinstance(body.expr, relay.Tuple) else (body,)
        self._targets = {outputs[at]: named[name] for at, name in like.items()}
        """For outputs that stay cut the weights that they are cut like."""
        self._chooser = CutChooser(self._network(), self._carrier, num_shards, self._known, uneven)

    def run(self) -> Sharded:
        """Return the function for all shards."""
        for node in self._nodes:
            if node not in self._free:
                self._leaves[node] = self._visited(node)
                self._cut_like_weight(node)
        results, outputs = self._results()
        parameters = []
        for parameter in self._main.params:
            parameters += self._variables.get(parameter.name_hint, [parameter])
        is_tuple = isinstance(self._main.body.checked_type, relay.TupleType) or len(results) > 1
        body = relay.Tuple(results) if is_tuple else results[0]
        main = relay.Function(parameters, body, attrs=self._main.attrs)
        names = (parameter.name_hint for parameter in self._main.params)
        weights = tuple(self._weights[name] for name in names if name in self._weights)
        return Sharded(main, weights, outputs, tuple(self._whole), self.num_layers)

    def _cut_like_weight(self, node: Node) -> None:
        """Bring an output that stays cut as a weight is to that state, for its other readers too:
        what updates a weight with its gradient then works on what each shard has of both."""
        if node not in self._targets:
            return
        (leaf,) = self._leaves[node]
        (weight,) = self._leaves_of(self._targets[node])
        if weight.state is not None:
            converted(leaf, weight.state, self._num_shards)
            leaf.state = weight.state

    def _network(self) -> Network:
        count = len(self._nodes[-1].shapes)
        position = {node: at for at, node in enumerate(self._nodes)}
        gathered = [output not in self._like for output in range(count)]
        backward = {node for node, tag in self._tags.items() if tag.backward}
        return Network(self._nodes, position, self._readers, gathered, backward)

    def _known(self, node: Node) -> OpenStates:
        """The states of what an expression is made of, as far as they are known."""
        if node in self._leaves:
            return [leaf.state for leaf in self._leaves[node]]
        return [None] * len(node.shapes)

    def _leaves_of(self, node: Node) -> list[Leaf]:
        """The tensors of an operand; of weights that are cut already, as that makes them."""
        if node not in self._free:
            return self._leaves[node]
        if isinstance(node.expr, (relay.Tuple, relay.TupleGetItem)):
            return self._visited(node)  # what its parts are may change with their readers
        leaves = self._leaves.get(node)
        if leaves is None:
            tag = Tag(0, False, node.name)
            leaves = self._leaves[node] = [Leaf(node, shape, tag) for shape in node.shapes]
        if node.op and any(leaf.state is None for leaf in leaves):
            read = [leaf for child in node.children for leaf in self._leaves_of(child)]
            if any(leaf.state is not None for leaf in read):
                leaves = self._leaves[node] = self._visited(node)
        return leaves

    def _visited(self, node: Node) -> list[Leaf]:
        if node.op:
            return self._call(node)
        leaves = [leaf for child in node.children for leaf in self._leaves_of(child)]
        if isinstance(node.expr, relay.Tuple):
            return leaves
        if isinstance(node.expr, relay.TupleGetItem):
            return node.field_of(leaves)
        forms: dict[State, Exprs] = {Kept.WHOLE: (node.expr,) * self._num_shards}  # an input
        return [Leaf(node, node.shapes[0], Tag(0, False, ""), Kept.WHOLE, forms)]

    def _call(self, call: Node) -> list[Leaf]:
        operands = [leaf for child in call.children for leaf in self._leaves_of(child)]
        way = self._way(call, operands)
        exprs = self._part_calls(call, operands, way.needs, way.outs, self._tags[call])
        leaves = self._results_of(call, exprs, way.outs, self._tags[call])
        if len(self._readers.get(call, ())) > 1:
            for leaf in leaves:
                self._add_up(leaf)
        return leaves

    def _way(self, call: Node, operands: Sequence[Leaf]) -> Way:
        states = [leaf.state for leaf in operands]
        if not is_weighted(call, self._free, self._carrier) or None not in states:
            return best_way(self._carrier, call, states, [])
        for leaf in operands:
            self._add_up(leaf)
        states = [leaf.state for leaf in operands]
        way = best_way(self._carrier, call, states, [])
        if any(isinstance(need, Cut) for need in way.needs):
            return way
        chosen = self._chooser.choose(call, states)
        if chosen is None:
            self._whole.append(call.name or call.op)
        return chosen or way

    def _add_up(self, leaf: Leaf) -> None:
        """Replace summands by their sum: several readers would each add them up."""
        if leaf.state is Kept.SUM:
            converted(leaf, Kept.WHOLE, self._num_shards)
            leaf.state = Kept.WHOLE

    def _part_calls(
        self, call: Node, operands: Sequence[Leaf], needs: States, outs: States, tag: Tag
    ) -> Exprs:
        forms = [self._form(leaf, need, tag) for leaf, need in zip(operands, needs, strict=True)]
        calls = []
        for shard in range(self._num_shards):
            tensors = [form[shard] for form in forms]
            arguments = [rebuilt(argument.checked_type, tensors) for argument in call.expr.args]
            part = part_call(call, arguments, needs, outs, shard)
            calls.append(with_span(part, tag.span(shard)))
        return tuple(calls)

    def _results_of(self, call: Node, exprs: Exprs, outs: States, tag: Tag) -> list[Leaf]:
        leaves = []
        for index, (shape, state) in enumerate(zip(call.shapes, outs, strict=True)):
            form = exprs
            if not call.is_tensor:
                form = tuple(relay.TupleGetItem(expr, index) for expr in exprs)
            leaves.append(Leaf(call, shape, tag, state, {state: form}))
        return leaves

    def _form(self, leaf: Leaf, need: State, tag: Tag) -> Exprs:
        """A tensor in the state that a reader needs."""
        if need in leaf.forms:
            return leaf.forms[need]
        if leaf.state is not None:
            form = converted(leaf, need, self._num_shards)
            if need is Kept.WHOLE and leaf.source not in self._free:
                leaf.state = need  # what was gathered once is there for all readers
            return form
        node = leaf.source.expr
        if isinstance(node, relay.Constant):
            leaf.forms[need] = tuple(
                cut_constant(node, need, shard) if isinstance(need, Cut) else node
                for shard in range(self._num_shards)
            )
        elif isinstance(node, relay.Var):
            leaf.state = need
            leaf.forms[need] = self._parameters(node, need)
        else:
            self._compute_weight(leaf, need, tag)
        return leaf.forms[need]

    def _parameters(self, parameter: relay.Var, state: State) -> Exprs:
        """A weight that is a parameter, as its first reader needs it."""
        name = parameter.name_hint
        if state is Kept.WHOLE and name not in self._like.values():
            self._weights[name] = ShardedWeight(name, (name,), None, ())
            return (parameter,) * self._num_shards
        self._weights[name], variables = cut_parameter(parameter, state, self._num_shards)
        self._variables[name] = variables
        return tuple(variables)

    def _compute_weight(self, leaf: Leaf, need: State, tag: Tag) -> None:
        """Compute what is made of weights alone: by each shard its part, if that can be."""
        call = leaf.source  # tuples have the leaves of their fields
        operands = [of for child in call.children for of in self._leaves_of(child)]
        needs = needs_before(self._carrier, call, need) if isinstance(need, Cut) else None
        outs: States = (need,)
        if needs is None:
            needs = (Kept.WHOLE,) * len(operands)
            outs = (Kept.WHOLE,) * len(call.shapes)
        exprs = self._part_calls(call, operands, needs, outs, tag)
        results = self._results_of(call, exprs, outs, tag)
        # Constants have any number of forms; what is made of parameters is cut as they are.
        is_constant = call not in self._from_parameters
        for own, new in zip(self._leaves[call], results, strict=True):
            own.forms |= new.forms
            if not is_constant:
                own.state = new.state
            if own is leaf and need not in leaf.forms:
                leaf.forms[need] = converted(new, need, self._num_shards)

    def _results(self) -> tuple[list[relay.Expr], tuple[tuple[int, ...], ...]]:
        """The outputs of the function, and what became of those that it had."""
        results: list[relay.Expr] = []
        outputs = []
        last = Tag(self.num_layers - 1, False, "")
        body = self._nodes[-1]
        for index, leaf in enumerate(self._leaves_of(body)):
            if index in self._like:
                output = body.children[index] if isinstance(body.expr, relay.Tuple) else body
                (weight,) = self._leaves_of(self._targets[output])
                state = weight.state or Kept.WHOLE
                self._form(weight, state, leaf.tag)
                form = self._form(leaf, state, leaf.tag)
            else:
                form = self._form(leaf, Kept.WHOLE, last)[:1]
            outputs.append(tuple(range(len(results), len(results) + len(form))))
            results += form
        return results, tuple(outputs)
