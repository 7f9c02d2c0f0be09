"""Small tools on Relay expressions that every module of this package needs.

All walks are over TVM's own post-order and iterative on our side, so that a network of thousands
of ops in a row does not exhaust Python's stack. Each look at an attribute is a call into TVM, and
most of the time of walks: none is asked for twice, nor an array's length with each of its elements
(`array[:]` asks once).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence

import numpy as np
import tvm
from tvm import relay

from heteroplace.errors import UnsupportedRelayError
from heteroplace.model.graph import tensor_bytes
from heteroplace.relay.expr_map import ExprMap, ExprSet

SPAN_PREFIX = "task:"
"""Source names of spans that name a task start with this, so that others are not mistaken."""
SHARED_DTYPES = frozenset(
    {"float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""Element types for which numpy and TVM can share memory."""
_INJECTIVE = 2
"""The largest TOpPattern of ops that TVM inlines into what reads their results."""


def shared_array(data: tvm.nd.NDArray) -> np.ndarray:
    """Return the numbers of an array: a read-only view of host memory, or a copy where numpy does
    not have the type or the array is on another device."""
    is_on_host = data.device.device_type == tvm.cpu().device_type
    array: np.ndarray
    if is_on_host and data.dtype in SHARED_DTYPES:
        array = np.from_dlpack(data)
    else:
        array = data.numpy()
    return array


def post_order(expr: relay.Expr) -> list[relay.Expr]:
    """Return every sub-expression once, operands first; bodies of inner functions are left out."""
    nodes: list[relay.Expr] = []
    inner = ExprSet()

    def visit(node: relay.Expr) -> None:
        nodes.append(node)
        if isinstance(node, relay.Function):
            for each in post_order_of_function(node):
                inner.add(each)

    relay.analysis.post_order_visit(expr, visit)
    if not inner:
        return nodes
    return [node for node in nodes if node not in inner or isinstance(node, relay.Function)]


def post_order_of_function(function: relay.Function) -> list[relay.Expr]:
    """Return the sub-expressions of a function: its parameters and its body, operands first."""
    nodes: list[relay.Expr] = function.params[:]
    relay.analysis.post_order_visit(function.body, nodes.append)
    return nodes


def element_types(mod: tvm.IRModule) -> set[str]:
    """Return the element types of all values of a module whose types are inferred."""
    return set(map(str, relay.analysis.all_dtypes(mod["main"])))


def is_primitive_call(expr: relay.Expr) -> bool:
    """Say whether `expr` calls a fused function, as FuseOps leaves them."""
    return isinstance(expr, relay.Call) and is_primitive(expr.op)


def is_primitive(function: relay.Expr) -> bool:
    """Say whether it is a fused function."""
    if not isinstance(function, relay.Function):
        return False
    attributes = function.attrs
    return attributes is not None and int(attributes.get("Primitive", 0)) == 1


def op_name(expr: relay.Expr) -> str | None:
    """Return the name of the operator that `expr` calls; None: it calls none."""
    if not isinstance(expr, relay.Call):
        return None
    op = expr.op
    return str(op.name) if isinstance(op, tvm.ir.Op) else None


def is_injective(expr: relay.Expr) -> bool:
    """Tell whether `expr` calls an op that TVM inlines into what reads its result."""
    if not isinstance(expr, relay.Call) or not isinstance(expr.op, tvm.ir.Op):
        return False
    pattern = expr.op.get_attr("TOpPattern")
    return pattern is not None and int(pattern) <= _INJECTIVE


def is_op_call(expr: relay.Expr, name: str) -> bool:
    """Say whether `expr` calls the operator `name`."""
    return op_name(expr) == name


def is_dataflow(function: relay.Function) -> bool:
    """Say whether a function has nothing but calls, tuples and constants."""
    kinds = (relay.Call, relay.Constant, relay.Function, relay.Tuple, relay.TupleGetItem, relay.Var)
    return all(isinstance(node, (*kinds, tvm.ir.Op)) for node in post_order(function.body))


def tensor_types(type_: tvm.ir.Type) -> list[relay.TensorType]:
    """Return the tensor types inside `type_`, tuples flattened.

    Raises
    ------
    UnsupportedRelayError
        A type that is neither a tensor nor a tuple of tensors, or a dynamic shape.
    """
    if isinstance(type_, relay.TupleType):
        return [leaf for field in type_.fields for leaf in tensor_types(field)]
    if not isinstance(type_, relay.TensorType):
        raise UnsupportedRelayError(
            f"a value has type {type_}; tasks exchange only tensors and tuples of tensors"
        )
    return [type_]


def known_shape(type_: relay.TensorType) -> tuple[int, ...] | None:
    """Return the shape as integers, or None where an extent is not known at compile time."""
    extents = type_.shape[:]
    if not all(isinstance(extent, (tvm.tir.IntImm, int)) for extent in extents):
        return None
    return tuple(extent if isinstance(extent, int) else extent.value for extent in extents)


def static_shape(type_: relay.TensorType) -> tuple[int, ...]:
    """Return the shape as integers.

    Raises
    ------
    UnsupportedRelayError
        Some extent is not known at compile time.
    """
    shape = known_shape(type_)
    if shape is None:
        raise UnsupportedRelayError(
            f"a value has the dynamic shape {type_}; give every input a fixed shape, e.g. by "
            f"frontend.from_onnx(path, input_shapes=...)"
        )
    return shape


def leaves(expr: relay.Expr) -> list[relay.Expr]:
    """Return the tensors that `expr`, whose type is inferred, consists of, tuples flattened."""
    if isinstance(expr, relay.Tuple):
        return [leaf for field in expr.fields[:] for leaf in leaves(field)]
    if isinstance(expr, relay.TupleGetItem) and isinstance(expr.tuple_value, relay.Tuple):
        return leaves(expr.tuple_value.fields[expr.index])
    type_ = expr.checked_type
    if not isinstance(type_, relay.TupleType):
        return [expr]
    count = len(type_.fields)
    return [relay.TupleGetItem(expr, index, expr.span) for index in range(count)]


def type_bytes(type_: relay.TensorType) -> int:
    """Return the size of a tensor type in bytes."""
    return tensor_bytes(static_shape(type_), type_.dtype)


def task_span(task: str) -> relay.Span:
    """Return a span that ties an expression to the task it belongs to."""
    return relay.Span(relay.SourceName(SPAN_PREFIX + task), 0, 0, 0, 0)


def task_of_span(expr: relay.Expr) -> str | None:
    """Return the task that the span of `expr` names; None if it names none."""
    span = expr.span
    if not isinstance(span, relay.Span):
        return None
    name = span.source_name.name
    return name[len(SPAN_PREFIX) :] if name.startswith(SPAN_PREFIX) else None


def spanned(call: relay.Call, span: relay.Span | None) -> relay.Call:
    """Return a call with the span of what it stands for, and so in its layer and task."""
    return relay.Call(call.op, call.args, call.attrs, call.type_args, span)


def tasks_in(function: relay.Function) -> list[str]:
    """Return the tasks named by the spans in a function's body, in post-order, each once."""
    nodes = post_order_of_function(function)
    names = (task_of_span(node) for node in nodes if isinstance(node, relay.Call))
    return list(dict.fromkeys(name for name in names if name is not None))


def rebuild(
    nodes: Sequence[relay.Expr],
    mapped: MutableMapping[relay.Expr, relay.Expr],
    rewrite: Callable[[relay.Expr, relay.Expr], relay.Expr] | None = None,
    span: relay.Span | None = None,
    *,
    keeps_unchanged: bool = False,
) -> None:
    """Copy `nodes` (operands first) with their operands replaced, recording old -> new in `mapped`.

    Parameters
    ----------
    nodes
        In post-order. Nodes already in `mapped` are left as they are mapped.
    mapped
        Old expression to new expression; extended in place.
    rewrite
        Called as rewrite(old, new) for each copied node; what it returns is used instead.
    span
        Given to every copied call; None keeps the old spans.
    keeps_unchanged
        What has the operands that it had is not copied: `rewrite` gets the old one twice.

    Raises
    ------
    UnsupportedRelayError
        A node that is no dataflow: control flow, references, pattern matching.
    """
    for node in nodes:
        if node in mapped:
            continue
        if isinstance(node, (relay.Var, relay.Constant, relay.GlobalVar, tvm.ir.Op)):
            new: relay.Expr = node
        elif isinstance(node, relay.Function):
            new = node
        elif isinstance(node, (relay.Call, relay.Tuple, relay.TupleGetItem)):
            old = read_by(node)
            operands = [mapped[operand] for operand in old]
            if keeps_unchanged and all(map(relay.Expr.same_as, old, operands)):
                new = node
            else:
                new = _of_operands(node, operands, span)
        else:
            raise UnsupportedRelayError(
                f"the module holds a {type(node).__name__} expression; only dataflow (calls, "
                f"tuples, constants) can be cut into tasks: unroll loops and inline branches first"
            )
        mapped[node] = new if rewrite is None else rewrite(node, new)


def read_by(node: relay.Expr) -> list[relay.Expr]:
    """Return what a call or a tuple reads, or what a field is of; of others, nothing."""
    if isinstance(node, relay.TupleGetItem):
        return [node.tuple_value]
    if isinstance(node, relay.Call):
        return list(node.args)
    return list(node.fields) if isinstance(node, relay.Tuple) else []


def readers_of(function: relay.Function) -> ExprMap[list[relay.Expr]]:
    """Return what reads each value of a function, as often as it does; the function itself reads
    its result. Operators are not values."""
    nodes = [node for node in post_order(function.body) if not isinstance(node, tvm.ir.Op)]
    readers: ExprMap[list[relay.Expr]] = ExprMap()
    for node in nodes:
        readers[node] = []
    for node in nodes:
        for value in read_by(node):
            readers[value].append(node)
    readers[function.body].append(function)
    return readers


def _of_operands(
    node: relay.Expr, operands: Sequence[relay.Expr], span: relay.Span | None
) -> relay.Expr:
    """A copy of a call, a tuple or a field that reads others."""
    if isinstance(node, relay.Call):
        return relay.Call(node.op, operands, node.attrs, node.type_args, span or node.span)
    if isinstance(node, relay.Tuple):
        return relay.Tuple(operands, span or node.span)
    return relay.TupleGetItem(operands[0], node.index, span or node.span)


def rebuilt(
    function: relay.Function,
    rewrite: Callable[[relay.Expr, relay.Expr], relay.Expr],
    mapped: MutableMapping[relay.Expr, relay.Expr] | None = None,
    ops: Collection[str] = (),
) -> relay.Function:
    """Return a function whose body is copied by `rebuild` where it changes, with parameters and
    attributes as they are; `mapped` may be given to look at what was copied so far. Where nothing
    changes it is the function itself.

    `ops`: names of those whose calls alone `rewrite` is asked about; (): about all nodes.
    """
    rebuilt_of = ExprMap[relay.Expr]() if mapped is None else mapped
    body = function.body

    def of_ops(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        return rewrite(old, new) if op_name(old) in ops else new

    rebuild(post_order(body), rebuilt_of, of_ops if ops else rewrite, keeps_unchanged=True)
    if rebuilt_of[body].same_as(body):
        return function
    return relay.Function(function.params, rebuilt_of[body], None, [], function.attrs)


def function_pass(
    name: str,
    run: Callable[[relay.Function], relay.Function],
    opt_level: int = 0,
    ops: Collection[str] = (),
) -> tvm.transform.Pass:
    """Return a pass that replaces each function, whose types are inferred before; those of what it
    makes are not.

    It is a pass over modules, as TVM infers all types before and again after each pass over
    functions.

    Parameters
    ----------
    ops
        Names of ops without any of which a module stays as it is; (): they do not matter.
    """

    def replaced(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        if ops and not set(ops).intersection(relay.analysis.list_op_freqs(mod)):
            return mod
        mod = relay.transform.InferType()(mod)
        functions = {}
        for variable, function in mod.functions.items():
            if isinstance(function, relay.Function):
                new = run(function)
                if not new.same_as(function):
                    functions[variable] = new
        return _with_functions(mod, functions) if functions else mod

    return tvm.transform.module_pass(replaced, opt_level=opt_level, name=name)


def _with_functions(
    mod: tvm.IRModule, new_functions: Mapping[relay.GlobalVar, relay.Function]
) -> tvm.IRModule:
    """Return a module with some functions replaced; what is said of the module stays."""
    functions = {**dict(mod.functions.items()), **new_functions}
    new = tvm.IRModule(functions, dict(mod.type_definitions.items()))
    return new if mod.attrs is None else new.with_attrs(mod.attrs)


class SharedFields:
    """A `rewrite` for `rebuild` after which equal networks have equal structural hashes.

    Structural equality of Relay tells a node with two readers from two equal nodes. Here tuples and
    their fields get one form: each is made once, a field of a made tuple is what was put in, and a
    tuple that a call returns is read field by field. (Calls are never merged: they are the ops.)
    """

    def __init__(self) -> None:
        self._made: dict[tuple[relay.Expr | int | str, ...], relay.Expr] = {}

    def __call__(self, old: relay.Expr, new: relay.Expr) -> relay.Expr:
        """Return what stands for `new`, the copy of `old`, whose type is inferred."""
        if isinstance(new, relay.TupleGetItem):
            return self.field(new.tuple_value, new.index, new.span)
        if isinstance(new, relay.Tuple):
            pairs = zip(new.fields[:], old.fields[:], strict=True)
            fields = [self.opened(value, before.checked_type) for value, before in pairs]
            return self._made.setdefault(("tuple", *fields), relay.Tuple(fields, new.span))
        if isinstance(new, relay.Call):
            given = new.args[:]
            pairs = zip(given, old.args[:], strict=True)
            arguments = [self.opened(value, before.checked_type) for value, before in pairs]
            if all(map(relay.Expr.same_as, given, arguments)):
                return new
            return relay.Call(new.op, arguments, new.attrs, new.type_args, new.span)
        return new

    def field(self, value: relay.Expr, index: int, span: relay.Span | None) -> relay.Expr:
        """Return field `index` of a tuple."""
        if isinstance(value, relay.Tuple):
            return value.fields[index]
        return self._made.setdefault((value, index), relay.TupleGetItem(value, index, span))

    def opened(self, value: relay.Expr, type_: tvm.ir.Type) -> relay.Expr:
        """Return a value of a type, if that is a tuple as an expression that names its fields."""
        if not isinstance(type_, relay.TupleType) or isinstance(value, relay.Tuple):
            return value
        fields = [
            self.opened(self.field(value, index, value.span), field_type)
            for index, field_type in enumerate(type_.fields)
        ]
        return self._made.setdefault(("tuple", *fields), relay.Tuple(fields, value.span))
