"""The networks that are measured, by name.

Those of the `onnx` wheel, randomly wired ones, two transformers, and others, small and of the
published sizes. Of a transformer's table of embeddings a run reads one row per token, so the
tables are cut to 8,192 rows; the head of GPT-2, which has the vocabulary's width, is as much
smaller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import tvm

from benchmarks.peers.stock import cpu_seconds, import_stock
from heteroplace import frontend
from heteroplace.demo.networks import randomly_wired
from heteroplace.errors import GraphError
from heteroplace.parts.onnx.prepare.onnx_weights import light_model, light_model_names
from heteroplace.progress import prefixed
from zoo.models import attention, convolutional, low_precision
from zoo.models.full_size import FULL_SIZE, T5_VOCABULARY
from zoo.models.transformers import bert_onnx, gpt_onnx

_WIRED: Mapping[str, Mapping[str, object]] = {
    "randomly_wired": {"kind": "ws", "nodes": 32, "channels": 128, "size": 28},
    "randomly_wired_small": {"kind": "ws", "nodes": 32, "channels": 78, "size": 14},
}
"""WS(4, 0.75) on 32 nodes as in DiviML, of two sizes."""

_Make = Callable[..., onnx.ModelProto]
_BASE = {"layers": 12, "hidden": 768, "heads": 12, "vocabulary": 8192}
_SMALL = {"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100, "tokens": 16}
_TRANSFORMERS: Mapping[str, tuple[_Make, Mapping[str, int]]] = {
    "bert_base": (bert_onnx, _BASE | {"tokens": 128}),
    "bert_small": (bert_onnx, _SMALL),
    "gpt2": (gpt_onnx, _BASE | {"tokens": 64}),
    "gpt2_small": (gpt_onnx, _SMALL),
}
"""The shapes of BERT base and of the smallest GPT-2; the small ones are for quick looks."""
_SMALL_NETWORKS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    make.__name__: make
    for make in (
        convolutional.densenet,
        convolutional.mobilenet_v3,
        convolutional.efficientnet,
        convolutional.convnext,
        convolutional.unet,
        convolutional.yolo,
        attention.vit,
        attention.swin,
        attention.t5_encoder,
        attention.lstm_tagger,
        low_precision.int8_qdq,
        low_precision.float16_cnn,
    )
}


SMALLEST = "smallest"
"""A network that every benchmark gets through in seconds; only `--only` with its name takes it."""


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
    return (*light_model_names(), *_WIRED, *_TRANSFORMERS, *FULL_SIZE, *small_network_names())


def matching_names(pattern: str, names: Sequence[str] | None = None) -> list[str]:
    """Return the names that match a regular expression, of some networks; None: of all.

    The smallest network is among them where the expression has its name.
    """
    listed = list(model_names() if names is None else names)
    if SMALLEST in pattern and SMALLEST not in listed:
        listed.append(SMALLEST)
    return list(filter(re.compile(pattern).search, listed))


def matching_models(
    pattern: str, say: Callable[[str], None]
) -> Iterator[tuple[Model, Callable[[str], None]]]:
    """Make the networks whose name matches a regular expression, one by one, each with what says
    lines about it."""
    for name in matching_names(pattern):
        yield load_model(name), prefixed(say, name)


def small_network_names() -> tuple[str, ...]:
    """Return the names of the small networks, each of another structure."""
    return tuple(_SMALL_NETWORKS)


def peer_network_names() -> tuple[str, ...]:
    """Return the networks in full size by which we are held against other runtimes."""
    light = ("densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet")
    return (*FULL_SIZE, *light, "bert_base", "gpt2", *_WIRED)


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
        floats = {key: (shape, "float32") for key, shape in network.input_shapes.items()}
        return Model(name, network.mod, network.params, random_inputs(floats, {}, seed))
    return import_model(name, onnx_model_of(name, seed), seed, _bounds(name))


def onnx_model_of(name: str, seed: int = 0) -> onnx.ModelProto:
    """Make the ONNX model of a network that has one; parameters as of `load_model`.

    Raises
    ------
    GraphError
        There is no such network, or it is written in Relay.
    """
    if name in _TRANSFORMERS:
        make, sizes = _TRANSFORMERS[name]
        return make(**sizes, seed=seed)
    if name in FULL_SIZE:
        return FULL_SIZE[name](seed)
    if name in _SMALL_NETWORKS:
        return _SMALL_NETWORKS[name](seed)
    if name == SMALLEST:
        return convolutional.smallest(seed)
    if name not in light_model_names():
        raise GraphError(f"no network {name!r}: expected one of {', '.join(model_names())}")
    return light_model(name, seed)


def _bounds(name: str) -> Mapping[str, int]:
    """What the integers of its inputs are below."""
    if name in _TRANSFORMERS:
        return {"ids": _TRANSFORMERS[name][1]["vocabulary"], "kinds": 2, "mask": 2}
    if name in FULL_SIZE:
        return {"ids": T5_VOCABULARY}
    return {"ids": attention.VOCABULARY} if name in _SMALL_NETWORKS else {}


def import_model(
    name: str,
    onnx_model: onnx.ModelProto,
    seed: int = 0,
    bounds: Mapping[str, int] | None = None,
) -> Model:
    """Import a model and make up an input for it.

    Parameters
    ----------
    seed
        Of the input.
    bounds
        See `random_inputs`.
    """
    start = cpu_seconds()
    imported = frontend.from_onnx(onnx_model)
    import_s = cpu_seconds() - start
    inputs = random_inputs(imported.inputs, bounds or {}, seed)
    return Model(name, imported.mod, imported.params, inputs, onnx_model, import_s)


def random_inputs(
    inputs: Mapping[str, tuple[tuple[int, ...], str]], bounds: Mapping[str, int], seed: int
) -> dict[str, np.ndarray]:
    """Return seeded random arrays for some inputs.

    Parameters
    ----------
    inputs
        Name -> (shape, dtype).
    bounds
        For each input of integers: its values are below this, and at least 0.

    Raises
    ------
    GraphError
        An input of integers has no bound: what they mean (token ids, a mask) cannot be guessed.
    """
    generator = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for name, (shape, dtype) in inputs.items():
        if np.issubdtype(np.dtype(dtype), np.floating):
            arrays[name] = generator.standard_normal(shape).astype(dtype)
        elif name in bounds:
            arrays[name] = generator.integers(bounds[name], size=shape).astype(dtype)
        else:
            raise GraphError(f"input {name!r} is {dtype}: give bounds={{{name!r}: ...}} for it")
    return arrays
