"""A Relay network -> one step of training it: loss, gradients and new weights, as Relay.

    main(x, w1, w2) -> p
    ==>
    main(x, labels, w1, w2) -> (loss, new w1, new w2)

The step is plain first-order dataflow, which is cut into tasks, placed, compiled and run like any
network; whoever runs it hands the new weights in at the next step. Two parts of it, `backward` and
`update`, let gradients of several microbatches or replicas be added up in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import relay

from heteroplace.errors import TrainingError, UnsupportedRelayError
from heteroplace.parts.parallel.training.backward import differentiate, is_floating
from heteroplace.parts.parallel.training.losses import Loss, loss_of
from heteroplace.parts.parallel.training.optimizers import SGD, Optimizer
from heteroplace.parts.parallel.training.simplify import simplified
from heteroplace.parts.parallel.training.step_spans import (
    LOSS,
    gradient_name,
    name_calls,
    name_new,
    span_name,
    update_name,
)
from heteroplace.relay.cache.expanded import Expanded
from heteroplace.relay.expressions import leaves, post_order, rebuild, static_shape
from heteroplace.relay.recurrent.unrolled import Unrolled
from heteroplace.relay.tasks.fold import children
from heteroplace.relay.tasks.rebatch import rebatch

LABELS = "labels"
"""Name of the input that holds the labels."""

_REFUSED: Mapping[str, str] = {
    "nn.batch_norm": "its statistics are those of the whole batch, which microbatches and replicas "
    "do not see. Use a norm of each item (layer norm), or make it a fixed affine map by "
    "relay.transform.SimplifyInference() with its statistics bound as constants",
    "nn.dropout": "it is random while training, and compiled networks are not. Remove it",
}


@dataclass(frozen=True)
class TrainingStep:
    """One step of training, whole and in parts. Made by `training_step`.

    All modules have one function `main`, typed, of plain dataflow. The span of each call says what
    it belongs to (`heteroplace.parts.parallel.training.step_spans`).
    """

    module: tvm.IRModule
    "main(inputs, labels, state) -> (loss, new state)."
    backward: tvm.IRModule
    "main(inputs, labels, weights) -> (loss, gradients); gradients in the order of `weights`."
    update: tvm.IRModule
    "main(state, gradients) -> new state."
    inputs: tuple[str, ...]
    "What the network itself reads, but its weights."
    weights: tuple[str, ...]
    "What is trained."
    state: tuple[str, ...]
    "What a step replaces: the weights, then what the optimiser keeps for each of them."
    gradients: tuple[str, ...]
    "Names of the gradients among the inputs of `update`, in the order of `weights`."
    untrained: tuple[str, ...]
    "Weights and constants that stay as they are; in words, with the reason."
    rows: int
    "Items that a run of `backward` predicts, rows of the prediction."
    batch: int
    "The same of the whole batch: the losses and gradients of batch / rows runs add up to its own."
    values: Mapping[str, tvm.nd.NDArray] = field(default_factory=dict, compare=False, repr=False)
    "The state to begin with; empty where weights were given by name alone."

    @property
    def module_with_gradients(self) -> tvm.IRModule:
        """main(inputs, labels, state) -> (loss, new state, gradients): no kernel spans a gradient
        and its use, so that its tasks are those of `backward` and `update`."""
        return _joined(self.backward["main"], self.update["main"], self.weights, True)


def training_step(
    mod: tvm.IRModule,
    params: Mapping[str, tvm.nd.NDArray] | Collection[str],
    loss: str | Loss = "mse",
    optimizer: Optimizer = SGD(lr=0.1),  # noqa: B008 (immutable)
    *,
    batch: int | None = None,
    items: int | None = None,
    output: int | None = None,
    trainable: Collection[str] | None = None,
) -> TrainingStep:
    """Return one step of training a network.

    Parameters
    ----------
    mod
        Module of one function `main` of plain dataflow with static shapes; what it predicts holds
        the items along axis 0.
    params
        Weights by the name of the parameter, or their names alone. All other parameters are inputs.
    loss
        Name of one of `LOSSES`, or a loss. Its labels become the input "labels".
    optimizer
        How the weights follow their gradients.
    batch
        Items of the whole batch, by which loss and gradients are divided; None: the items that the
        network predicts for, as if they were all. More, if these are one microbatch of several.
    items
        Items that the network reads, if `batch` counts those: a prediction may have several rows of
        each (one for each token), and is divided by the rows of the whole batch. None: `batch`
        counts rows of the prediction.
    output
        Index of the output that is the prediction; None: the only one.
    trainable
        Names of the weights to train; None: all of floating-point types. The others, and those
        that have no gradient, are bound as constants if their values are given, else they are
        inputs.

    Raises
    ------
    UnsupportedRelayError
        An op has no gradient, takes statistics of the batch or is random; no plain dataflow. Of a
        batch of more items than the network predicts for, an op is not known to keep them apart.
    TrainingError
        No such loss, weight or output; nothing to train; a batch smaller than the items.

    Examples
    --------
    >>> step = training_step(mod, params, loss="mse", optimizer=SGD(lr=0.1))
    ... # doctest: +SKIP
    """
    main = relay.transform.InferType()(Expanded()(Unrolled()(mod)))["main"]
    chosen = _trainable(main, params, trainable)
    main = _named_prediction(main, params, chosen, output)
    rows = _num_rows(main.body.checked_type)
    if batch is not None and items is not None:
        batch = _rows_of_batch(batch, items, rows)
    if batch is not None and batch < rows:
        raise TrainingError(
            f"a batch of {batch} items, of which the network predicts {rows} at once; expected "
            f"at least as many"
        )
    if batch is not None and (items is None or batch > rows):
        _check_keeps_apart(main, params, rows, batch)
    batch = rows if batch is None else batch
    values = params if isinstance(params, Mapping) else {}
    backward = _backward(main, chosen, loss_of(loss), batch, values)
    names = _names(backward)
    place = names.index(LABELS)
    inputs, weights = tuple(names[:place]), tuple(names[place + 1 :])
    update, state = _update(backward.params[place + 1 :], optimizer)
    return TrainingStep(
        _joined(backward, update, weights, False),
        tvm.IRModule.from_expr(backward),
        tvm.IRModule.from_expr(update),
        inputs,
        weights,
        state,
        tuple(parameter.name_hint for parameter in update.params[len(state) :]),
        _untrained(main.body, chosen, weights),
        rows,
        batch,
        _first_state(update, state, params),
    )


def _backward(
    main: relay.Function,
    chosen: Collection[str],
    loss: Loss,
    batch: int,
    values: Mapping[str, tvm.nd.NDArray],
) -> relay.Function:
    """The loss and the gradients of those of `chosen` that have one; labels before the weights.

    Of the others those with a value are constants, as what is not to be trained is.
    """
    if any(parameter.name_hint == LABELS for parameter in main.params):
        raise TrainingError(
            f"the network has an input {LABELS!r} itself; that name is for the labels of the loss: "
            f"rename it"
        )
    prediction = main.body
    labels = relay.Var(LABELS, loss.labels_type(prediction.checked_type))
    known_exprs: dict[relay.Expr, relay.Expr] = {node: node for node in post_order(prediction)}
    outputs = [name_new(loss.value(prediction, labels, batch), known_exprs, LOSS)]
    seed = name_new(loss.gradient(prediction, labels, batch), known_exprs, gradient_name(LOSS))
    variables = [parameter for parameter in main.params if parameter.name_hint in chosen]
    inputs = [parameter for parameter in main.params if parameter.name_hint not in chosen]
    weights = []
    fixed = {}
    for var, gradient in zip(variables, differentiate(prediction, seed, variables), strict=True):
        if gradient is not None:
            weights.append(var)
            outputs.append(gradient)
        elif var in known_exprs:
            inputs.append(var)  # read, but only where there are no gradients
            if var.name_hint in values:
                fixed[var.name_hint] = values[var.name_hint]
    if not weights:
        raise TrainingError(
            f"there is nothing to train: the loss depends on none of "
            f"{', '.join(sorted(chosen)) or 'the weights, of which none is a number'}"
        )
    function = relay.Function([*inputs, labels, *weights], relay.Tuple(outputs))
    if fixed:
        function = relay.build_module.bind_params_by_name(function, fixed)
    return _typed(simplified(_typed(function)))


def _typed(function: relay.Function) -> relay.Function:
    return relay.transform.InferType()(tvm.IRModule.from_expr(function))["main"]


def _trainable(
    main: relay.Function, params: Collection[str], trainable: Collection[str] | None
) -> frozenset[str]:
    """The names of the weights to train."""
    types = {parameter.name_hint: parameter.checked_type for parameter in main.params}
    unknown = [name for name in params if name not in types]
    unknown += [name for name in trainable or () if name not in params]
    if unknown:
        raise TrainingError(
            f"the network has no weight {', '.join(unknown)}; its parameters are {', '.join(types)}"
        )
    fixed = [name for name in trainable or () if not is_floating(types[name])]
    if fixed:
        raise TrainingError(f"weights of integers cannot be trained: {', '.join(fixed)}")
    named = params if trainable is None else trainable
    return frozenset(name for name in named if is_floating(types[name]))


def _named_prediction(
    main: relay.Function,
    params: Mapping[str, tvm.nd.NDArray] | Collection[str],
    chosen: Collection[str],
    output: int | None,
) -> relay.Function:
    """The network with one output, a name for each call, and all known but what is trained."""
    outputs = leaves(main.body)
    if output is None and len(outputs) > 1:
        raise TrainingError(
            f"the network has {len(outputs)} outputs; say by output= which is the "
            f"prediction (of heteroplace.shard by prediction=, on a command line by --prediction)"
        )
    if not 0 <= (output or 0) < len(outputs):
        raise TrainingError(f"there is no output {output}; the network has {len(outputs)}")
    mapped: dict[relay.Expr, relay.Expr] = {parameter: parameter for parameter in main.params}
    prediction = outputs[output or 0]
    nodes = post_order(prediction)
    for node in nodes:
        op = getattr(node.op, "name", "") if isinstance(node, relay.Call) else ""
        if op in _REFUSED:
            where = f" of {span_name(node)!r}" if span_name(node) else ""
            raise UnsupportedRelayError(f"{op}{where} cannot be trained: {_REFUSED[op]}")
    name_calls(nodes, mapped)
    function = relay.Function(main.params, mapped[prediction])
    if isinstance(params, Mapping):
        bound = {name: value for name, value in params.items() if name not in chosen}
        function = relay.build_module.bind_params_by_name(function, bound)
    return _typed(function)


def _num_rows(prediction: relay.TensorType) -> int:
    shape = static_shape(prediction)
    if not shape or not is_floating(prediction):
        raise TrainingError(
            f"the prediction is {prediction}; expected floating-point numbers with the items along "
            f"axis 0"
        )
    return shape[0]


def _rows_of_batch(batch: int, items: int, rows: int) -> int:
    """How many rows are predicted for the whole batch, `rows` for `items` of it."""
    if items < 1 or batch % items:
        raise TrainingError(
            f"a batch of {batch} items, of which the network reads {items} at once; expected a "
            f"multiple of these"
        )
    return batch // items * rows


def _names(main: relay.Function) -> list[str]:
    return [parameter.name_hint for parameter in main.params]


def _check_keeps_apart(
    main: relay.Function, params: Collection[str], predicted: int, batch: int
) -> None:
    """Raise UnsupportedRelayError unless parts of a batch are predicted as the whole would be.

    Items are along axis 0 of the inputs, of which a prediction may have another number of rows.
    Where inputs have unlike ones, those that hold no items are as long in each part.
    """
    read = relay.analysis.free_vars(main.body)
    rows = {
        var.name_hint: static_shape(var.checked_type)[0]
        for var in read
        if var.name_hint not in params and static_shape(var.checked_type)
    }
    row_counts = list(rows.values())
    own = predicted if predicted in row_counts or not row_counts else row_counts[0]
    if batch <= min(own, predicted):
        return  # all of it at once
    items = [name for name, extent in rows.items() if extent == own]
    mod = tvm.IRModule.from_expr(relay.Function(read, main.body))
    try:
        rebatch(mod, 2, items, own)
    except UnsupportedRelayError as err:
        raise UnsupportedRelayError(
            f"the network cannot be trained on parts of a batch, microbatches or replicas, which "
            f"each see their own {own} items only: {err}. Or train on the whole batch at once"
        ) from err


def _update(
    weights: Sequence[relay.Var], optimizer: Optimizer
) -> tuple[relay.Function, tuple[str, ...]]:
    """The optimiser's step for all weights, and the names of the state."""
    gradients = [relay.Var(f"gradient.{var.name_hint}", var.checked_type) for var in weights]
    old_slots, new_weights, new_kept = [], [], []
    for weight, gradient in zip(weights, gradients, strict=True):
        slots = [
            relay.Var(f"{slot}.{weight.name_hint}", weight.checked_type) for slot in optimizer.slots
        ]
        updated = optimizer.update(weight, gradient, slots, weight.checked_type.dtype)
        known_exprs: dict[relay.Expr, relay.Expr] = {var: var for var in (weight, gradient, *slots)}
        named = [name_new(expr, known_exprs, update_name(weight.name_hint)) for expr in updated]
        old_slots += slots
        new_weights.append(named[0])
        new_kept += named[1:]
    state = [*weights, *old_slots]
    function = relay.Function([*state, *gradients], relay.Tuple([*new_weights, *new_kept]))
    return _typed(function), tuple(var.name_hint for var in state)


def _joined(
    backward: relay.Function, update: relay.Function, weights: tuple[str, ...], keeps: bool
) -> tvm.IRModule:
    """Backward pass and update as one module; with the gradients as outputs too, if it `keeps`."""
    loss, *gradients = backward.body.fields
    by_name = {var.name_hint: var for var in backward.params}
    num_state = len(update.params) - len(weights)
    mapped: dict[relay.Expr, relay.Expr] = dict(
        zip(update.params[num_state:], gradients, strict=True)
    )
    state = []
    for parameter in update.params[:num_state]:
        mapped[parameter] = by_name.get(parameter.name_hint, parameter)
        state.append(mapped[parameter])
    rebuild(post_order(update.body), mapped)
    inputs = [var for var in backward.params if var.name_hint not in weights]
    outputs = [loss, *mapped[update.body].fields, *(gradients if keeps else ())]
    function = relay.Function([*inputs, *state], relay.Tuple(outputs))
    return tvm.IRModule.from_expr(_typed(function))


def _untrained(
    prediction: relay.Expr, chosen: Collection[str], weights: tuple[str, ...]
) -> tuple[str, ...]:
    """What could be a weight and is not trained."""
    names = [
        f"{name}: the loss has no gradient with respect to it"
        for name in sorted({*chosen} - {*weights})
    ]
    for node in post_order(prediction):
        if isinstance(node, relay.Call) and is_floating(node.checked_type):
            for child in children(node):
                if not isinstance(child, relay.Constant) or not is_floating(child.checked_type):
                    continue
                shape = static_shape(child.checked_type)
                if np.prod(shape) > 1:
                    names.append(f"constant {list(shape)} of {span_name(node)!r}: no parameter")
    return tuple(dict.fromkeys(names))


def _first_state(
    update: relay.Function,
    state: tuple[str, ...],
    params: Mapping[str, tvm.nd.NDArray] | Collection[str],
) -> dict[str, tvm.nd.NDArray]:
    """The state to begin with: the given weights, zeros for the optimiser."""
    if not isinstance(params, Mapping):
        return {}
    types = {parameter.name_hint: parameter.checked_type for parameter in update.params}
    return {
        name: params[name]
        if name in params
        else tvm.nd.array(np.zeros(static_shape(types[name]), types[name].dtype))
        for name in state
    }
