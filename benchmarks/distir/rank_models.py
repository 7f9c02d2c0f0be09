"""Small networks for real runs on one-core ranks: an MLP, and the shapes of BERT and GPT-2.

Each module holds one row of its inputs; weights are given apart. All run forward and are trained.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relay

from heteroplace.parts.onnx.importer import from_onnx
from zoo.models.transformers import bert_onnx, gpt_onnx

INFERENCE, TRAINING = MODES = ("inference", "training")


@dataclass(frozen=True)
class RankModel:
    """A network of some layers, and for which batches it is run."""

    name: str
    layers: int
    width: int
    batches: tuple[int, ...]
    heads: int = 1
    tokens: int = 1
    vocabulary: int = 0
    training: tuple[tuple[str, Any], ...] = (("optimizer", "sgd:0.0001"),)
    """Options of `heteroplace.shard`."""

    def options(self, mode: str) -> dict[str, Any]:
        """Return the options of `heteroplace.shard` for a mode."""
        return dict(self.training) if mode == TRAINING else {}

    def module(self, mode: str) -> tuple[tvm.IRModule, Mapping[str, tvm.nd.NDArray]]:
        """Return the module of one row, and its weights, seeded."""
        if not self.tokens > 1:
            return _perceptron(self.layers, self.width)
        make = bert_onnx if self.name.startswith("BERT") else gpt_onnx
        model = make(self.layers, self.width, self.heads, self.tokens, self.vocabulary, seed=0)
        imported = from_onnx(model, keep_weights=mode == TRAINING)
        return imported.mod, imported.params


def _transformer(name: str, **training: Any) -> RankModel:
    """Two blocks of 256, for 32 tokens."""
    options = {"optimizer": "sgd:0.0001", **training}
    return RankModel(name, 2, 256, (8, 32), 4, 32, 256, tuple(options.items()))


RANK_MODELS = (
    RankModel("MLP", 8, 512, (64, 256)),
    _transformer("BERT shape", loss="mse", prediction=1),
    _transformer("GPT-2 shape", loss="cross_entropy"),
)


SMALLEST = RankModel("smallest", 2, 32, (4,))
"""A network that the benchmark gets through in seconds; only `--only` with its name takes it."""


def matching_rank_models(pattern: str) -> tuple[RankModel, ...]:
    """Return the networks whose name matches a regular expression.

    >>> [model.name for model in matching_rank_models("MLP|small")]
    ['MLP']
    >>> [model.name for model in matching_rank_models("^smallest$")]
    ['smallest']
    """
    listed = (*RANK_MODELS, SMALLEST) if SMALLEST.name in pattern else RANK_MODELS
    return tuple(model for model in listed if re.search(pattern, model.name))


def smaller(model: RankModel, layers: int, width: int, batches: tuple[int, ...]) -> RankModel:
    """Return a model of the same shape, for quick looks."""
    return replace(model, layers=layers, width=width, batches=batches)


def _perceptron(layers: int, width: int) -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    """Square dense layers with rectifiers between them."""
    random = np.random.default_rng(0)
    x = value = relay.var("x", shape=(1, width))
    variables, params = [x], {}
    for layer in range(layers):
        name = f"w{layer}"
        weight = random.standard_normal((width, width)) * (2 / width) ** 0.5
        params[name] = tvm.nd.array(weight.astype("float32"))
        variables.append(relay.var(name, shape=(width, width)))
        value = relay.nn.dense(value if layer == 0 else relay.nn.relu(value), variables[-1])
    mod = tvm.IRModule.from_expr(relay.Function(variables, value))
    return relay.transform.InferType()(mod), params
