"""Passes of TVM -> the same passes, without inferring types that are known.

TVM infers the types of a whole module before each pass that asks for them, and again behind each
pass over functions: some 60 times for a network, which took most of the time in which large ones
are prepared. Here a module is left as it is if all its functions were typed before.

The type relations of ops with layouts also write all rules of their layouts as text, for a log that
is off. That takes 0.7 ms for a convolution, and other ops take 0.02. So results are remembered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relay

from heteroplace.relay.opt_level import inner_context

_PASS = "InferType"
_UNCALLED = ("main", "_tmp")
"""What begins the names of functions that none calls: the model, and what rewriters of patterns
have typed beside it."""

_RELATIONS = "tvm.relay.type_relation."
"""Before the names of type relations, where TVM looks for them."""
_SLOW_OPS = (
    *("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.deformable_conv2d"),
    *("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
    *("nn.contrib_conv2d_NCHWc", "nn.contrib_depthwise_conv2d_NCHWc"),
    *("layout_transform", "image.resize2d", "nn.upsampling", "nn.depth_to_space"),
)
_MOST_RESULTS = 4096
"""Of one op; the largest networks have fewer."""


@tvm.instrument.pass_instrument
class _TypesOnce:
    """An instrument by which InferType does not run on what it has made itself."""

    def __init__(self) -> None:
        # It holds the functions, so that no pass changes one in place, or gets its address.
        self._typed: set[tvm.ir.BaseFunc] = set()

    def should_run(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> bool:
        """Say whether a pass is to run."""
        return info.name != _PASS or not self._is_typed(mod)

    def run_after_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Note what InferType has made."""
        if info.name == _PASS and _is_alone(mod):
            self._typed.update(mod.functions.values())

    def _is_typed(self, mod: tvm.IRModule) -> bool:
        return _is_alone(mod) and all(each in self._typed for each in mod.functions.values())


def _is_alone(mod: tvm.IRModule) -> bool:
    """Say whether no function can be one that another calls, whose type may have changed."""
    return all(variable.name_hint.startswith(_UNCALLED) for variable in mod.functions)


@contextlib.contextmanager
def types_once() -> Iterator[None]:
    """Within, passes run under the options in force, and types that are known are not inferred.

    A caller with instruments sees every pass, and nothing is left out.
    """
    _remember_results()
    current: Any = tvm.transform.PassContext.current()
    if len(current.instruments or ()):
        yield
        return
    with inner_context({}, [_TypesOnce()]):
        yield


def _remember_results() -> None:
    """Give each slow op a relation that remembers the results of the op's own, for good."""
    for name in _SLOW_OPS:
        relation = f"heteroplace.{name}"
        if tvm.get_global_func(_RELATIONS + relation, allow_missing=True) is None:
            op = tvm.ir.Op.get(name)
            tvm.register_func(_RELATIONS + relation, _RememberedRelation(op))
            op.add_type_rel(relation)


class _RememberedRelation:
    """The type relation of an op, which remembers results for arguments whose types are known."""

    def __init__(self, op: tvm.ir.Op) -> None:
        self._op = op
        (constraint,) = op.op_type.type_constraints
        self._own = constraint.func
        self._assign = tvm.ir.EnvFunc.get(_RELATIONS + "Identity")
        self._results: dict[tuple[Any, ...], tuple[tvm.ir.Attrs, relay.Type | None]] = {}
        """By the address of attributes, which are held here, and the types of the arguments. A type
        is None while it is inferred."""

    def __call__(self, types: Any, num_inputs: int, attributes: Any, reporter: Any) -> bool:
        """Say whether the types are found; parameters are those of all type relations."""
        inputs = [types[index] for index in range(num_inputs)]
        key = (attributes.handle.value, *map(_tensor_key, inputs))
        if None in key:
            return bool(self._own(types, num_inputs, attributes, reporter))
        _, result = self._results.get(key, (None, None))
        if result is not None:
            # The relation of two equal types: TVM has no other way to say what a type is.
            return bool(self._assign([result, types[num_inputs]], 1, None, reporter))
        is_typed = bool(self._own(types, num_inputs, attributes, reporter))
        if is_typed and key not in self._results:
            if len(self._results) >= _MOST_RESULTS:
                self._results.clear()
            self._results[key] = attributes, None
            self._results[key] = attributes, self._result(inputs, attributes)
        return is_typed

    def _result(self, inputs: list[relay.Type], attributes: tvm.ir.Attrs) -> relay.Type:
        """Return the type of a call; it asks this relation again."""
        variables = [relay.var(f"x{index}", type_) for index, type_ in enumerate(inputs)]
        call = relay.Call(self._op, variables, attributes)
        mod = tvm.IRModule.from_expr(relay.Function(variables, call))
        with tvm.transform.PassContext():  # nobody else's instruments see this pass
            return relay.transform.InferType()(mod)["main"].ret_type


def _tensor_key(type_: relay.Type) -> tuple[Any, ...] | None:
    """Return what equal types of tensors have in common; None: it is none of a known shape."""
    if not isinstance(type_, relay.TensorType):
        return None
    if not all(isinstance(extent, tvm.tir.IntImm) for extent in type_.shape):
        return None
    return (type_.dtype, *map(int, type_.shape))
