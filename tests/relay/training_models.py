"""Networks to train, in float64 for finite differences, and what a step of training makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import tvm
from relay_models import module, stock_executor, var
from tvm import relay

from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.parallel.training import SGD, TrainingStep, training_step
from heteroplace.relay.expressions import post_order, rebuild, static_shape
from heteroplace.relay.tasks.rebatch import rebatch
from zoo.models.transformers import bert_onnx, gpt_onnx

Arrays = dict[str, np.ndarray]


def mlp(
    layers: int = 4, rows: int = 16, width: int = 8, dtype: str = "float64"
) -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    """Products without bias, a relu after each; weights [out, in] w0, w1, ..."""
    random = np.random.default_rng(1)
    value, inputs, params = var("x", (rows, width), dtype), [], {}
    inputs.append(value)
    for layer in range(layers):
        weight = var(f"w{layer}", (width, width), dtype)
        inputs.append(weight)
        value = relay.nn.relu(relay.nn.dense(value, weight))
        array = random.standard_normal((width, width)) * (2 / width) ** 0.5
        params[f"w{layer}"] = tvm.nd.array(array.astype(dtype))
    return module(inputs, value), params


def imported(
    model: onnx.ModelProto,
) -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    """A model of float32 in Relay, all of it in float64."""
    found = from_onnx(model)
    main = found.mod["main"]
    mapped: dict[relay.Expr, relay.Expr] = {}
    for parameter in main.params:
        type_ = parameter.checked_type
        dtype = _wide(type_.dtype)
        mapped[parameter] = relay.Var(
            parameter.name_hint, relay.TensorType(static_shape(type_), dtype)
        )

    def widen(old: relay.Expr, new: relay.Expr) -> relay.Expr:
        if isinstance(new, relay.Constant) and new.data.dtype == "float32":
            return relay.const(new.data.numpy(), "float64")
        if isinstance(new, relay.Call) and new.attrs is not None:
            fields = {str(name): new.attrs[name] for name in new.attrs.keys()}  # noqa: SIM118
            named = {name for name in fields if name.endswith("dtype") and fields[name]}
            if named:
                fields |= {name: _wide(str(fields[name])) for name in named}
                attrs = tvm.ir.make_node(new.op.attrs_type_key, **fields)
                return relay.Call(new.op, new.args, attrs, None, new.span)
        return new

    rebuild(post_order(main.body), mapped, widen)
    params = {
        name: tvm.nd.array(value.numpy().astype(_wide(value.dtype)))
        for name, value in found.params.items()
    }
    return module([mapped[parameter] for parameter in main.params], mapped[main.body]), params


def _wide(dtype: str) -> str:
    return "float64" if dtype == "float32" else dtype


def examples(mod: tvm.IRModule, names: Sequence[str], seed: int = 0, bound: int = 2) -> Arrays:
    """Random inputs; integers are below `bound`."""
    random = np.random.default_rng(seed)
    found = {}
    for parameter in mod["main"].params:
        if parameter.name_hint not in names:
            continue
        type_ = parameter.checked_type
        shape = static_shape(type_)
        found[parameter.name_hint] = (
            random.standard_normal(shape).astype(type_.dtype)
            if type_.dtype.startswith("float")
            else random.integers(0, bound, shape).astype(type_.dtype)
        )
    return found


_SMALL = {"layers": 1, "hidden": 20, "heads": 2, "tokens": 5, "vocabulary": 24}


def transformer_step(name: str) -> tuple[TrainingStep, Arrays]:
    """A step of a network of the shape of BERT or GPT-2 for two items, and inputs for it."""
    make = {"bert": bert_onnx, "gpt2": gpt_onnx}[name]
    mod, params = imported(make(**_SMALL, seed=0))
    inputs = [p.name_hint for p in mod["main"].params if p.name_hint not in params]
    mod = rebatch(mod, 2, inputs)
    loss, rate, output = ("mse", 0.01, 1) if name == "bert" else ("cross_entropy", 0.3, 0)
    step = training_step(mod, params, loss, SGD(lr=rate), output=output)
    return step, examples(step.module, (*step.inputs, "labels"))


class Trainer:
    """A step of training, compiled, with the state that it replaces."""

    def __init__(
        self,
        step: TrainingStep,
        compiled: Callable[[tvm.IRModule], Callable[[Arrays], list[np.ndarray]]] = stock_executor,
    ) -> None:
        self._step = step
        self._run = compiled(step.module)
        self.state: Arrays = {name: value.numpy() for name, value in step.values.items()}

    def train(self, inputs: Mapping[str, np.ndarray]) -> float:
        """Do one step; the loss before it."""
        loss, *state = self._run({**inputs, **self.state})
        self.state = dict(zip(self._step.state, state, strict=True))
        return float(loss)


def slopes(
    run: Callable[[Arrays], list[np.ndarray]],
    inputs: Arrays,
    names: Sequence[str],
    output: int,
    seed: int = 0,
    step: float = 1e-5,
) -> tuple[float, Arrays]:
    """How fast an output (a scalar) grows along a random direction of `names`; the direction, of
    length 1."""
    random = np.random.default_rng(seed)
    direction = {name: random.standard_normal(inputs[name].shape) for name in names}
    length = sum(np.sum(array**2) for array in direction.values()) ** 0.5
    direction = {name: array / length for name, array in direction.items()}
    ends = []
    for sign in (1, -1):
        moved = {name: inputs[name] + sign * step * direction[name] for name in names}
        ends.append(float(run({**inputs, **moved})[output]))
    return (ends[0] - ends[1]) / (2 * step), direction
