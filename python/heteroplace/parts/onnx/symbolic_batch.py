"""One model imported for two and for three rows -> its module for one row, for any batch.

In a shape for any batch the extent that grows with the rows is open (None). All others are known,
and shapes that a network computes are constants since the import. Such shapes are found by
importing the model twice, op beside op: an extent is proportional to the rows, or the same; a
constant is one for all rows, or repeats a row; all else that differs depends on the batch in
another way, and is refused by name. Then the rows are followed through the ops (`tasks.rebatch`),
from two to one, and back to two and three, where all types have to be those of the imported
modules. What the first axis holds is so known for certain, which the model for one row alone does
not say: an axis of one may be any.

    before (for two and for three rows) ==> after

    reshape(%x: [2, 8, 4], [2, 32])
    reshape(%x: [3, 8, 4], [3, 32])     ==>  reshape(%x: [1, 8, 4], [1, 32]); [?, 32] for any batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import tvm
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.parts.onnx.imported_model import ImportedModel
from heteroplace.relay.axes.shapes import slice_entries, with_attributes
from heteroplace.relay.expressions import is_op_call, post_order, static_shape, tensor_types
from heteroplace.relay.local_types import write_types
from heteroplace.relay.tasks.fold import children
from heteroplace.relay.tasks.rebatch import Growth, Rebatched, Rebatcher

TWO, THREE = 2, 3
"""Rows of the imported modules: the fewest that are told from one row, and from each other."""

_RESHAPING = frozenset(("reshape", "broadcast_to", "strided_slice"))
"""Ops with shapes written out, which `rebatch` writes anew."""
_NO_END = 2**31 - 1
"""Ends of slices from here on mean the whole axis."""


def for_any_batch(two: ImportedModel, three: ImportedModel, inputs: Sequence[str]) -> ImportedModel:
    """Return the model for any batch: its module has one row, and `rebatch` makes any number.

    Parameters
    ----------
    two, three
        The same model, imported for so many rows.
    inputs
        Names of the parameters that hold the rows, along their first axis.

    Raises
    ------
    UnsupportedRelayError
        Something depends on the number of rows in another way than rows do, or an op may mix
        them; the op is named.
    """
    pairs = _Pairs(two, three)
    shrunk = _Shrinker(dict.fromkeys(inputs, Growth(Fraction(1, TWO), TWO)), pairs)
    imported_network = two.of_module(shrunk.run(two.mod["main"]))
    for rows, at in ((TWO, 0), (THREE, 1)):
        _check_grown(shrunk, inputs, pairs, rows, at)
    params = {name: pairs.weight_rows.get(name, weight) for name, weight in two.params.items()}
    line = f"any number of rows of {', '.join(inputs)}"
    return replace(
        imported_network, params=params, symbolic=tuple(inputs), report=(*two.report, line)
    )


def symbolic_shape(small: relay.TensorType, large: relay.TensorType) -> tuple[int | None, ...]:
    """Return the shape for any batch of what has these types for two and for three rows.

    Raises
    ------
    ValueError
        They are of no one type: an extent is neither the same nor proportional to the rows.
    """
    first, second = static_shape(small), static_shape(large)
    if len(first) != len(second) or small.dtype != large.dtype:
        raise ValueError(f"{small} for {TWO} rows, {large} for {THREE}")
    shape: list[int | None] = []
    for a, b in zip(first, second, strict=True):
        if a != b and a * THREE != b * TWO:
            raise ValueError(f"an extent of {a} for {TWO} rows, of {b} for {THREE}")
        shape.append(a if a == b else None)
    if shape.count(None) > 1:
        raise ValueError(f"the rows are along several axes of {first}")
    return tuple(shape)


class _Pairs:
    """The expressions of two modules side by side.

    Raises
    ------
    UnsupportedRelayError
        They differ otherwise than by the number of rows.
    """

    def __init__(self, two: ImportedModel, three: ImportedModel) -> None:
        self._values = two.params, three.params
        firsts, seconds = (_expressions(model) for model in (two, three))
        self.other: dict[relay.Expr, relay.Expr] = {}
        self.shapes: dict[relay.Expr, tuple[tuple[int | None, ...], ...]] = {}
        """For any batch, of each tensor of an expression."""
        self.repeated: dict[relay.Expr, np.ndarray] = {}
        """Constants and weights that repeat a row: that row."""
        self.weight_rows: dict[str, tvm.nd.NDArray] = {}
        """Of the weights among them, by name."""
        self._readers: dict[relay.Expr, relay.Expr] = {}
        for node in firsts:
            for operand in children(node):
                self._readers.setdefault(operand, node)
        for first, second in zip(firsts, seconds, strict=False):
            self._pair(first, second)
        if len(firsts) != len(seconds):
            longer = max(firsts, seconds, key=len)
            raise _fault(
                longer[min(len(firsts), len(seconds))], "it is there for some numbers only"
            )

    def _pair(self, first: relay.Expr, second: relay.Expr) -> None:
        if first in self.other:  # a parameter, which the body names again
            return
        self.other[first] = second
        small, large = _value(first, self._values[0]), _value(second, self._values[1])
        is_same = type(first) is type(second) and [
            self.other.get(operand) for operand in children(first)
        ] == list(children(second))
        if is_same and isinstance(first, relay.Call):
            is_same = first.op == second.op
        # A weight may be a constant for two rows, and too large for one for three.
        if not is_same and (small is None or large is None):
            raise _fault(first, "another one stands in its place for another number")
        types = zip(
            tensor_types(first.checked_type), tensor_types(second.checked_type), strict=True
        )
        try:
            self.shapes[first] = tuple(symbolic_shape(a, b) for a, b in types)
        except ValueError as err:
            raise _fault(self.named(first), f"its type is not one for each row: {err}") from err
        if small is not None and large is not None:
            self._pair_values(first, small.numpy(), large.numpy())
            if first in self.repeated and isinstance(first, relay.Var):
                self.weight_rows[first.name_hint] = tvm.nd.array(self.repeated[first])
        elif isinstance(first, relay.Call):
            self._check_attributes(first, second)

    def named(self, node: relay.Expr) -> relay.Expr:
        """Return what a message about an expression names: the op that reads it, if it is none."""
        return node if isinstance(node, relay.Call) else self._readers.get(node, node)

    def _pair_values(self, first: relay.Expr, small: np.ndarray, large: np.ndarray) -> None:
        if small.shape == large.shape:
            if small.tobytes() != large.tobytes():
                raise _fault(self.named(first), "it reads a number that is made of the batch")
            return
        (axis,) = self.axes(first)
        assert axis is not None  # or the shapes would be equal
        extent = small.shape[axis] // TWO
        row = np.take(small, range(extent), axis)
        tiles = [1] * small.ndim
        for whole, rows in ((small, TWO), (large, THREE)):
            tiles[axis] = rows
            if np.tile(row, tiles).tobytes() != whole.tobytes():
                raise _fault(self.named(first), "it reads another constant for each row")
        self.repeated[first] = row

    def _check_attributes(self, first: relay.Call, second: relay.Call) -> None:
        name = first.op.name
        if name not in _RESHAPING:
            if not tvm.ir.structural_equal(first.attrs, second.attrs):
                raise _fault(first, "its attributes depend on their number")
        elif name == "strided_slice":
            (axis,) = self.axes(first.args[0])
            for small, large in zip(slice_entries(first), slice_entries(second), strict=True):
                if axis == small[0] and not _is_whole(first, axis, small, large):
                    raise _fault(first, f"it cuts the rows, axis {axis}, by a number of its own")

    def axes(self, node: relay.Expr) -> tuple[int | None, ...]:
        """For each tensor of an expression the axis that holds the rows."""
        shapes = self.shapes[node]
        return tuple(shape.index(None) if None in shape else None for shape in shapes)


def _is_whole(call: relay.Call, axis: int, small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """Say whether a slice for two rows, and for three, keeps all of an axis for any number."""
    _, begin, end, stride = small
    extent = static_shape(call.args[0].checked_type)[axis]
    is_open = min(end, large[2]) >= _NO_END
    follows = end == extent and large[2] * TWO == extent * THREE
    return begin == large[1] == 0 and stride == large[3] == 1 and (is_open or follows)


class _Shrinker(Rebatcher):
    """The walk from two rows to one; constants that repeat a row hold rows too."""

    def __init__(self, growths: Mapping[str, Growth], pairs: _Pairs) -> None:
        super().__init__(growths, "any number of rows")
        self._pairs = pairs
        self.main: relay.Function | None = None
        self.now: dict[relay.Expr, relay.Expr] = {}
        """Expressions for two rows -> those for one."""

    def _module(self, main: relay.Function, body: Rebatched) -> tvm.IRModule:
        self.now = {old: new.expr for old, new in self._done.items()}
        parameters = [self.now[parameter] for parameter in main.params]
        self.main = relay.Function(parameters, body.expr, attrs=main.attrs)
        return super()._module(main, body)

    def _parameter(self, parameter: relay.Var) -> Rebatched:
        if parameter not in self._pairs.repeated:
            return super()._parameter(parameter)
        row = self._pairs.repeated[parameter]
        type_ = relay.TensorType(row.shape, parameter.checked_type.dtype)
        var = relay.Var(parameter.name_hint, type_, parameter.span)
        write_types(var)
        return Rebatched(var, self._pairs.axes(parameter), (Growth(Fraction(1, TWO), TWO),))

    def _visit(self, node: relay.Expr) -> Rebatched:
        if isinstance(node, relay.Constant) and node in self._pairs.repeated:
            expr = relay.Constant(tvm.nd.array(self._pairs.repeated[node]), node.span)
            return Rebatched(expr, self._pairs.axes(node), (Growth(Fraction(1, TWO), TWO),))
        return super()._visit(node)

    def _call(self, call: relay.Call) -> Rebatched:
        axes = self._pairs.axes(call)
        is_fill = is_op_call(call, "broadcast_to") and self._done[call.args[0]].axes == (None,)
        if is_fill and axes != (None,):
            # Of a constant; for more rows it is repeated where they meet it.
            assert axes[0] is not None
            shape = list(static_shape(call.checked_type))
            shape[axes[0]] //= TWO
            expr = with_attributes(call, [self._done[call.args[0]].expr], shape=shape)
            write_types(expr)
            return Rebatched(expr, axes, (Growth(Fraction(1, TWO), TWO),))
        rebatched = super()._call(call)
        if rebatched.axes != axes:
            raise self._fault(
                call, f"its rows are along axes {axes}, and seem along {rebatched.axes}"
            )
        return rebatched


class _Grower(Rebatcher):
    """The walk from one row to several, which is looked into."""

    def made(self, main: relay.Function) -> dict[relay.Expr, Rebatched]:
        """Return what becomes of each expression."""
        self._rebatched(main)
        return self._done


def _check_grown(
    shrunk: _Shrinker, inputs: Sequence[str], pairs: _Pairs, rows: int, at: int
) -> None:
    """Raise UnsupportedRelayError unless what holds rows has its imported type for so many."""
    assert shrunk.main is not None
    rebatched = _Grower(dict.fromkeys(inputs, Growth(Fraction(rows))), "any number of rows").made(
        shrunk.main
    )
    for pair in pairs.other.items():
        grown, imported = rebatched[shrunk.now[pair[0]]], pair[at]
        pairs_of_types = zip(
            tensor_types(grown.expr.checked_type),
            tensor_types(imported.checked_type),
            grown.axes,
            strict=True,
        )
        for type_, expected, axis in pairs_of_types:
            if axis is not None and type_ != expected:
                raise _fault(
                    pairs.named(pair[0]),
                    f"for {rows} rows it would make {type_}, and makes {expected}",
                )


def _expressions(model: ImportedModel) -> list[relay.Expr]:
    """Inputs, then what the body is made of: the order of weights may be another one."""
    main = model.mod["main"]
    inputs = [parameter for parameter in main.params if parameter.name_hint in model.inputs]
    return [*inputs, *(node for node in post_order(main.body) if not isinstance(node, tvm.ir.Op))]


def _value(node: relay.Expr, weights: Mapping[str, tvm.nd.NDArray]) -> tvm.nd.NDArray | None:
    """The value of a constant or a weight; None: it is neither."""
    if isinstance(node, relay.Constant):
        return node.data
    return weights.get(node.name_hint) if isinstance(node, relay.Var) else None


def _fault(node: relay.Expr, reason: str) -> UnsupportedRelayError:
    is_op = isinstance(node, relay.Call) and isinstance(node.op, tvm.ir.Op)
    name = node.op.name if is_op else type(node).__name__
    where = f" of {node.span.source_name.name!r}" if isinstance(node.span, relay.Span) else ""
    return UnsupportedRelayError(
        f"{name}{where} cannot run for any number of rows: {reason}. Import the model for one "
        f"number (batch=...) instead"
    )
