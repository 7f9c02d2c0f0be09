"""The networks that are measured, by name: those of the `onnx` wheel, and randomly wired ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import tvm

from heteroplace import frontend
from heteroplace.bench.networks import randomly_wired
from heteroplace.bench.stock import cpu_seconds, import_stock
from heteroplace.errors import GraphError
from heteroplace.relay.onnx_weights import light_model, light_model_names

_WIRED: Mapping[str, Mapping[str, object]] = {
    "randomly_wired": {"kind": "ws", "nodes": 32, "channels": 128, "size": 28},
    "randomly_wired_small": {"kind": "ws", "nodes": 32, "channels": 78, "size": 14},
}
"""WS(4, 0.75) on 32 nodes as in DiviML, of two sizes."""


@dataclass(frozen=True)
class Model:
    """A network with an input, imported by our front end."""

    name: str
    mod: tvm.IRModule
    params: Mapping[str, tvm.nd.NDArray]
    """Weights; not bound."""
    inputs: Mapping[str, np.ndarray]
    """One seeded random item."""
    onnx_model: onnx.ModelProto | None = None
    """The model that it was imported from; None: it was written in Relay."""
    import_s: float = 0.0
    """Processor seconds of the import."""

    def stock(self) -> tuple[tvm.IRModule, Mapping[str, tvm.nd.NDArray], dict[str, np.ndarray]]:
        """Return module, parameters and inputs as stock TVM imports them."""
        if self.onnx_model is None:
            return self.mod, self.params, dict(self.inputs)
        mod, params = import_stock(self.onnx_model)
        # It renames inputs, but keeps their order.
        names = [p.name_hint for p in mod["main"].params if p.name_hint not in params]
        return mod, params, dict(zip(names, self.inputs.values(), strict=True))


def model_names() -> tuple[str, ...]:
    """Return the names that `load_model` knows."""
    return (*light_model_names(), *_WIRED)


def load_model(name: str, seed: int = 0) -> Model:
    """Make or import a network.

    Parameters
    ----------
    name
        One of `model_names()`.
    seed
        Of the weights of a network from the `onnx` wheel, and of the input.

    Raises
    ------
    GraphError
        There is no such network.
    """
    if name in _WIRED:
        network = randomly_wired(**_WIRED[name])  # type: ignore[arg-type]
        inputs = _random_inputs(network.input_shapes, seed)
        return Model(name, network.mod, network.params, inputs)
    if name not in light_model_names():
        raise GraphError(f"no network {name!r}: expected one of {', '.join(model_names())}")
    return import_model(name, light_model(name, seed), seed)


def import_model(name: str, onnx_model: onnx.ModelProto, seed: int = 0) -> Model:
    """Import a model whose inputs are all floating-point, and make up an input for it."""
    start = cpu_seconds()
    imported = frontend.from_onnx(onnx_model)
    import_s = cpu_seconds() - start
    inputs = _random_inputs({key: shape for key, (shape, _) in imported.inputs.items()}, seed)
    return Model(name, imported.mod, imported.params, inputs, onnx_model, import_s)


def _random_inputs(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
