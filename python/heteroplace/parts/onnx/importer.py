"""An ONNX file -> a Relay module, its parameters, and a report of what was done on the way.

The way: read and check the file (`prepare/onnx_load.py`); fix the sizes of its inputs; let
onnxruntime simplify it, if that is installed (`prepare/onnx_simplify.py`); rewrite what TVM's
importer would misread (`prepare/onnx_repair.py`); import in linear time (`incremental_types.py`).
Nothing of this is silent: `ImportedModel.report` has a line for each.

Integer and small tensors of the file become constants of the module, because shapes, axes and
scales must be known while importing; all other weights stay parameters, so that the module can be
planned without them.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt
import tvm
from onnx import ModelProto, NodeProto
from tvm import relay

from heteroplace.entries import load_entry
from heteroplace.errors import FrontendError
from heteroplace.interrupts import interruptible
from heteroplace.parts.onnx.converters import RANDOM_OPS, REFUSED
from heteroplace.parts.onnx.import_arguments import check_arguments
from heteroplace.parts.onnx.imported_model import ImportedModel
from heteroplace.parts.onnx.incremental_types import IncrementalImport, linear_time_import
from heteroplace.parts.onnx.known_ops import known_ops
from heteroplace.parts.onnx.prepare.node_attributes import NODE_ERRORS
from heteroplace.parts.onnx.prepare.onnx_batch import SYMBOLIC, free_batch
from heteroplace.parts.onnx.prepare.onnx_constants import make_constants
from heteroplace.parts.onnx.prepare.onnx_control_flow import expand_control_flow
from heteroplace.parts.onnx.prepare.onnx_functions import expand_functions
from heteroplace.parts.onnx.prepare.onnx_half import describe_half_weights
from heteroplace.parts.onnx.prepare.onnx_half_types import widen_half
from heteroplace.parts.onnx.prepare.onnx_labels import numbers_for_labels
from heteroplace.parts.onnx.prepare.onnx_load import (
    check_ops_are_known,
    input_shape,
    read_model,
    set_input_shapes,
    set_input_values,
    true_inputs,
)
from heteroplace.parts.onnx.prepare.onnx_names import name_nodes
from heteroplace.parts.onnx.prepare.onnx_repair import describe_node, repair_model
from heteroplace.parts.onnx.prepare.onnx_simplify import simplify_offline
from heteroplace.parts.onnx.prepare.onnx_small_integers import widen_small_integers
from heteroplace.parts.onnx.prepare.onnx_source import OnnxSource, with_source
from heteroplace.parts.onnx.prepare.onnx_types import check_types
from heteroplace.parts.onnx.routers.onnx_choices import choose_branches
from heteroplace.parts.onnx.routers.onnx_masks import masks_for_positions
from heteroplace.parts.onnx.symbolic_batch import THREE, TWO, for_any_batch
from heteroplace.relay.expressions import static_shape
from heteroplace.relay.limits import check_sizes
from heteroplace.relay.output_names import with_graph_name, with_output_names
from heteroplace.relay.tasks.fold import children, is_static
from heteroplace.state_option import StateNames
from heteroplace.tvm_bridge import register_onnx_mapping_shim, require_tvm

_FIX_GROWN_CACHES = "heteroplace.parts.onnx.caches.grown_caches:with_fixed_caches"
"""Loaded for models with state."""
_MAX_REASON_LENGTH = 400
_CONSEQUENCE = "The type inference pass was unable"
"""What the type checker says after the true reason."""

_IMPORTER_ERRORS = (tvm.TVMError, *NODE_ERRORS)


@dataclass(frozen=True)
class _Settings:
    """Arguments of `from_onnx` that hold for any sizes."""

    input_values: Mapping[str, npt.ArrayLike]
    simplify: bool
    keep_weights: bool
    state: StateNames


@interruptible
def from_onnx(
    path_or_model: str | os.PathLike[str] | ModelProto,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    input_values: Mapping[str, npt.ArrayLike] | None = None,
    batch: int | Literal["symbolic"] | None = None,
    simplify: bool = True,
    keep_weights: bool = False,
    state: StateNames = "",
) -> ImportedModel:
    """Import an ONNX model, with or without weights.

    Parameters
    ----------
    path_or_model
        Path of an .onnx file (external weights beside it), or a model in memory (not changed).
    input_shapes
        Sizes of inputs that the file leaves free: name -> shape; with `batch`, rows may be -1.
    input_values
        Values of inputs that are then constants and no inputs any more: name -> array. For those
        of which shapes are made (`inputs_read_at_import` lists them).
    batch
        Rows of the inputs whose first size the file leaves free. "symbolic": any number; `mod` has
        one row then, `at_batch` gives it others, and so does whatever runs items together. It takes
        twice as long, since only what two imports agree on is known for all.
    simplify
        Let onnxruntime simplify the graph first, if it is installed.
    keep_weights
        Keep small tensors (biases) as parameters too, so that they can be trained: those of more
        than one number that only sums, products, norms, convolutions and look-ups read.
    state
        Outputs by the inputs that they replace from call to call, or "auto": caches of keys and
        values that grow with each call get a fixed capacity, the size of the past.

    Returns
    -------
    The module, its parameters, and what was done.

    Raises
    ------
    FrontendError
        The file is missing, damaged or incomplete; an op or a shape cannot be compiled. The
        message names the node, the input or the tensor, and what to do.
    UnsupportedRelayError
        The batch is symbolic, and cannot be followed through an op, which is named.

    Examples
    --------
    >>> mod, params = from_onnx("resnet50.onnx", input_shapes={"x": (1, 3, 224, 224)})
    ... # doctest: +SKIP
    """
    check_arguments(path_or_model, input_shapes, input_values, batch)
    settings = _Settings(input_values or {}, simplify, keep_weights, state)
    if batch is None:
        return _imported(path_or_model, input_shapes or {}, settings)
    free = free_batch(path_or_model, input_shapes or {}, settings.input_values)
    if batch != SYMBOLIC:
        return _imported(path_or_model, free.shapes_at(batch), settings)
    free.check_alike_for_all()
    two = _imported(path_or_model, free.shapes_at(TWO), settings)
    three = _imported(path_or_model, free.shapes_at(THREE), settings)
    return for_any_batch(two, three, free.names)


def _imported(
    path_or_model: str | os.PathLike[str] | ModelProto,
    input_shapes: Mapping[str, Sequence[int]],
    settings: _Settings,
) -> ImportedModel:
    """Import a model of fixed sizes; parameters and errors as of `from_onnx`."""
    with ThreadPoolExecutor(1) as pool:
        return _import_and_hash(pool, path_or_model, input_shapes, settings)


def _import_and_hash(
    pool: ThreadPoolExecutor,
    path_or_model: str | os.PathLike[str] | ModelProto,
    input_shapes: Mapping[str, Sequence[int]],
    settings: _Settings,
) -> ImportedModel:
    """Import a model of fixed sizes; `pool` computes the digest of its file meanwhile."""
    start = time.process_time()
    require_tvm()
    register_onnx_mapping_shim()
    model, where = read_model(path_or_model)
    report = set_input_values(model, settings.input_values, where)
    report += (labels := numbers_for_labels(model, where))
    model, fixed = _with_fixed_caches(model, settings.state, input_shapes, where)
    report += fixed
    origin = model if settings.input_values or labels or fixed else path_or_model
    source = pool.submit(OnnxSource.of, origin, input_shapes, settings.simplify)
    if isinstance(origin, ModelProto):  # which is about to change
        wait([source])
    report += set_input_shapes(model, input_shapes, where)
    report += _small_integers(model, where)
    check_types(model, where)
    check_ops_are_known(model, lambda node: node.op_type not in RANDOM_OPS, REFUSED, where)
    is_known = known_ops()
    model, lines = _prepared(model, settings, is_known, where)
    report += lines
    check_ops_are_known(model, is_known, REFUSED, where)
    num_nodes = len(model.graph.node)
    make_constants(model, settings.keep_weights)
    mod, params, num_folded = _import(model, where)
    _check_is_static(mod, where)
    check_sizes(mod["main"], where, FrontendError)
    main = mod["main"]
    report.append(
        f"{num_nodes} ONNX nodes -> {count_calls(main)} Relay calls, {num_folded} folded by "
        f"numpy, {time.process_time() - start:.1f} s of processor time"
    )
    names = [value.name for value in true_inputs(model.graph)]
    outputs = tuple(output.name for output in model.graph.output)
    types = {var.name_hint: var.checked_type for var in main.params}
    mod = with_output_names(with_source(mod, source.result()), outputs)
    return ImportedModel(
        mod=with_graph_name(mod, model.graph.name),
        params={var.name_hint: params[var.name_hint] for var in main.params[len(names) :]},
        inputs={name: (static_shape(types[name]), str(types[name].dtype)) for name in names},
        outputs=outputs,
        report=tuple(report),
    )


def _with_fixed_caches(
    model: ModelProto, state: StateNames, input_shapes: Mapping[str, Sequence[int]], where: str
) -> tuple[ModelProto, list[str]]:
    """Return the model with a fixed capacity of caches that grow, and what was done to it."""
    if not state:
        return model, []
    fixed: tuple[ModelProto, list[str]] = load_entry(_FIX_GROWN_CACHES)(
        model, state, input_shapes, known_ops(), where
    )
    return fixed


def _prepared(
    model: ModelProto, settings: _Settings, is_known: Callable[[NodeProto], bool], where: str
) -> tuple[ModelProto, list[str]]:
    """Return the model with control flow and functions expanded, and what was done to it."""
    report: list[str] = []
    try:
        model, lines = expand_functions(model, is_known)
        report += lines
        lines = expand_control_flow(model)
        report += lines
        if lines:  # bodies are in the graph now, with ops of their own
            model, lines = expand_functions(model, is_known)
            report += lines
        report += describe_half_weights(model)
        report += widen_half(model)
        if settings.simplify:
            model, lines = simplify_offline(model)
            report += lines
            # onnxruntime may fuse ops into one of a newer opset, such as Gelu.
            model, lines = expand_functions(model, is_known)
            report += lines
        report += masks_for_positions(model)
        choose_branches(model)
        report += repair_model(model)
    except FrontendError as err:
        raise FrontendError(f"{where}: {err}") from err
    except _IMPORTER_ERRORS as err:
        raise FrontendError(
            f"{where} cannot be prepared: {type(err).__name__}: {err}. A node, or a constant that "
            f"it reads, is not as its op says; check the model by onnx.checker."
        ) from err
    return model, report


def _small_integers(model: ModelProto, where: str) -> list[str]:
    try:
        return widen_small_integers(model)
    except FrontendError as err:
        raise FrontendError(f"{where}: {err}") from err


def count_calls(function: relay.Function) -> int:
    """Return the number of distinct calls of ops in `function`."""
    return sum(isinstance(expr, relay.Call) for expr in _expressions(function))


def _import(model: ModelProto, where: str) -> tuple[tvm.IRModule, Mapping[str, Any], int]:
    """Run TVM's importer; turn whatever it raises into one line about one node."""
    name_nodes(model)  # TVM would number the unnamed ones
    with linear_time_import() as state, warnings.catch_warnings():
        # The importer warns where the ONNX checker is stricter than itself.
        warnings.simplefilter("ignore")
        try:
            # Sizes of 0 are sizes: in the file alone they would count as unknown.
            shapes = {value.name: input_shape(value) for value in true_inputs(model.graph)}
            mod, params = relay.frontend.from_onnx(model, shapes, freeze_params=False)
        except FrontendError as err:  # of a converter of ours
            raise FrontendError(f"{_place(state, where)}: {err}.") from err
        except _IMPORTER_ERRORS as err:
            raise _import_error(state, where, err) from err
        num_folded = state.num_folded
        try:
            mod = relay.transform.InferType()(mod)
            if _dynamic_expression(mod["main"]) is not None:
                mod = relay.transform.InferType()(relay.transform.DynamicToStatic()(mod))
        except tvm.TVMError as err:
            reason = _reason(err, state.diagnostics)
            raise FrontendError(f"{where}: the module does not type-check: {reason}") from err
    return mod, params, num_folded


def _import_error(state: IncrementalImport, where: str, err: BaseException) -> FrontendError:
    reason = _reason(err, state.diagnostics)
    return FrontendError(
        f"{_place(state, where)} cannot be imported: {reason}. Export the model with other "
        f"settings, or express this op by others."
    )


def _place(state: IncrementalImport, where: str) -> str:
    """Return the name of the node that is being converted, for messages."""
    node = state.current_node
    return f"{where}: {describe_node(node)}" if node is not None else where


def _reason(err: BaseException, diagnostics: Sequence[str]) -> str:
    """Return the one line of an error that says why: TVM puts C++ stack frames around it."""
    causes = [text for text in diagnostics if not text.startswith(_CONSEQUENCE)]
    if isinstance(err, tvm.error.DiagnosticError) and causes:
        return causes[-1].splitlines()[0][:_MAX_REASON_LENGTH]
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"\w*Error: ", line)] or lines[-1:]
    text = telling[-1][:_MAX_REASON_LENGTH] if telling else "no reason given"
    name = type(err).__name__
    return text if re.match(r"\w*Error: ", text) else f"{name}: {text}"


def _check_is_static(mod: tvm.IRModule, where: str) -> None:
    expr = _dynamic_expression(mod["main"])
    if expr is not None:
        node = f" of node '{expr.span.source_name.name}'" if expr.span else ""
        op = getattr(expr.op, "name", "function") if isinstance(expr, relay.Call) else "value"
        raise FrontendError(
            f"{where}: the shape of {op}{node} depends on values at run time ({expr.checked_type}),"
            f" and only static shapes can be placed. Export the model with fixed sizes."
        )


def _dynamic_expression(function: relay.Function) -> Any | None:
    """Return an expression whose type is not static, the first one of the dataflow; or None."""
    for expr in _expressions(function):
        expr_type = expr._checked_type_
        parts = expr_type.fields if isinstance(expr_type, relay.TupleType) else [expr_type]
        if not isinstance(expr, relay.Function) and any(
            isinstance(part, relay.TensorType) and not is_static(part) for part in parts
        ):
            return expr
    return None


def _expressions(function: relay.Function) -> Iterator[Any]:
    """Yield each expression of `function` once, arguments before calls; no Python recursion."""
    seen: set[Any] = set()
    stack = [(function.body, False)]
    while stack:
        expr, is_ready = stack.pop()
        if is_ready:
            yield expr
        elif expr not in seen:
            seen.add(expr)
            stack.append((expr, True))
            stack.extend((child, False) for child in reversed(children(expr)))
