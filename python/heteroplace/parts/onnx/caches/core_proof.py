"""The nodes of an attention and numbers of tokens -> its scale and window, if it is causal.

The nodes are run with random queries, keys and values, and compared with attention in which token i
of a call sees the tokens up to place past + i. So it does not matter how a file writes its mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from heteroplace.errors import FrontendError
from heteroplace.parts.onnx.caches.attention_core import AttentionCore
from heteroplace.parts.onnx.caches.length_run import LengthEvaluator, LengthValue, LengthValues
from heteroplace.parts.onnx.prepare.onnx_repair import describe_node

Array = npt.NDArray[Any]
_TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}
"""Greatest difference of results of random normal values; 1e-4 in wider types."""
_SMALL, _LARGE = 1e-3, 1e4
"""Factors of queries: scores are then far below their bound, and at it."""
_NEAR = 1e-5
_SHOWN = 12


@dataclass(frozen=True)
class CoreForm:
    """What an attention computes."""

    heads: int
    shared: int
    """Heads of keys and values."""
    size: int
    """Channels of a head."""
    scale: float
    softcap: float
    """Bound of the scores; 0: none."""
    window: int
    """How many of the last tokens are seen; -1: all."""


@dataclass
class CoreProver:
    """Proves attention of one model; layers that are alike are looked at once."""

    evaluator: LengthEvaluator
    length: int
    runs: Mapping[int, LengthValues]
    """Tensors of the model by the number of past tokens."""
    where: str
    _forms: dict[object, CoreForm] = field(default_factory=dict)

    def form_of(self, core: AttentionCore) -> CoreForm:
        """Return what an attention computes.

        Raises
        ------
        FrontendError
            It is not causal attention.
        """
        for name in (core.query, *core.outer):
            for past, values in self.runs.items():
                if name not in values or (name != core.query and not values[name].is_known):
                    self._refuse(
                        core,
                        f"'{name}' cannot be evaluated for {past} past tokens, and a mask must "
                        f"depend on the numbers of tokens only",
                    )
        key = self._key(core)
        if key not in self._forms:
            self._forms[key] = self._proven(core)
        return self._forms[key]

    def _key(self, core: AttentionCore) -> object:
        """What two layers have in common that compute the same."""
        names: dict[str, int] = {}
        nodes = []
        for node in core.nodes:
            indices = [names.setdefault(name, len(names)) for name in (*node.input, *node.output)]
            attributes = tuple(each.SerializeToString() for each in node.attribute)
            nodes.append((node.op_type, node.domain, tuple(indices), attributes))
        tensors = []
        for values in self.runs.values():
            for name in names:
                if name in core.outer:
                    array = values[name].array
                    tensors.append((array.shape, str(array.dtype), array.tobytes()))
            for name in (core.query, core.keys.joined, core.values.joined):
                tensors.append((values[name].shape, str(values[name].array.dtype), b""))
        return tuple(nodes), hash(tuple(tensors))

    def _proven(self, core: AttentionCore) -> CoreForm:
        largest = max(self.runs)
        query, keys, results = (
            self.runs[largest][name].shape for name in (core.query, core.keys.joined, core.result)
        )
        shared, size = keys[1], keys[3]
        heads = int(np.prod(query)) // (self.length * size)
        values = self.runs[largest][core.values.joined].shape
        if values != keys or int(np.prod(results)) != heads * self.length * size:
            self._refuse(
                core, f"queries {list(query)}, keys {list(keys)}, values {list(values)} and "
                f"results {list(results)} do not have heads of one size"
            )  # fmt: skip
        if heads % shared or any(dim != 1 for dim in query[: len(query) - 3] if len(query) == 4):
            self._refuse(core, f"{heads} heads of queries do not share {shared} of keys")
        form = CoreForm(heads, shared, size, 1.0, 0.0, -1)
        scale, softcap = self._scale(core, form)
        form = CoreForm(heads, shared, size, scale, softcap, self._window(core, form))
        for past in self.runs:
            self._compare(core, form, past)
        return form

    def _run(
        self, core: AttentionCore, past: int, factor: float = 1.0
    ) -> tuple[LengthValues, tuple[Array, Array, Array]]:
        """Run the nodes; return their tensors, and queries, keys and values as float64."""
        tensors = self.runs[past]
        rng = np.random.default_rng(past)
        values: LengthValues = {name: tensors[name] for name in core.outer}
        drawn = []
        names = (core.query, core.keys.joined, core.values.joined)
        for name, scale in zip(names, (factor, 1.0, 1.0), strict=True):
            shape, dtype = tensors[name].shape, tensors[name].array.dtype
            array = (scale * rng.standard_normal(shape)).astype(dtype)
            values[name] = LengthValue(array, True)
            drawn.append(array.astype(np.float64))
        self.evaluator.run(core.nodes, values, is_exact=True)
        if core.result not in values or core.scores not in values:
            lacking = next(
                node for node in core.nodes if any(n and n not in values for n in node.output)
            )
            self._refuse(core, f"{describe_node(lacking)} cannot be evaluated")
        queries, keys, rows = drawn
        return values, (queries.reshape(-1, self.length, keys.shape[-1]), keys[0], rows[0])

    def _scale(self, core: AttentionCore, form: CoreForm) -> tuple[float, float]:
        """The factor and the bound of scores, by those of tokens with themselves."""
        past = min(self.runs)

        def scores(factor: float) -> tuple[Array, Array]:
            values, (queries, keys, _) = self._run(core, past, factor)
            every = values[core.scores].array.astype(np.float64)
            rows = np.arange(self.length)
            own = every.reshape(form.heads, self.length, -1)[:, rows, past + rows]
            repeated = np.repeat(keys, form.heads // form.shared, 0)[:, past + rows]
            return own, (queries * repeated).sum(-1)

        try:
            own, products = scores(_SMALL if core.is_capped else 1.0)
            softcap = float(np.abs(scores(_LARGE)[0]).max()) if core.is_capped else 0.0
        except (ValueError, IndexError):
            self._refuse(core, "its softmax does not have a row of each token")
        scale = float((own * products).sum() / (products * products).sum())
        usual = form.size**-0.5
        for exact in (usual, 1.0, float(np.float32(usual))):
            if abs(scale - exact) <= _NEAR * exact:
                scale = exact
                break
        return scale, float(round(softcap)) if abs(
            softcap - round(softcap)
        ) < _NEAR * softcap else softcap

    def _window(self, core: AttentionCore, form: CoreForm) -> int:
        """How many tokens the last one sees; -1: all."""
        past = max(self.runs)
        total = past + self.length
        seen = self._seen(core, form, past)[-1]
        count = int(seen.sum())
        return count if count < total and seen[total - count :].all() else -1

    def _seen(self, core: AttentionCore, form: CoreForm, past: int) -> Array:
        """Which tokens those of a call see, bool[length, past + length], in the first head."""
        values, _ = self._run(core, past, 0.0)
        softmax = next(node for node in core.nodes if node.op_type == "Softmax")
        shares = values[softmax.output[0]].array.reshape(form.heads, self.length, -1)
        seen: Array = shares[0, :, : past + self.length] > 0
        return seen

    def _compare(self, core: AttentionCore, form: CoreForm, past: int) -> None:
        """Raise FrontendError unless the results are those of causal attention."""
        values, (queries, keys, rows) = self._run(core, past)
        result = values[core.result].array
        expected = _causal_attention(form, queries, keys, rows, past)
        difference = float(
            np.abs(result.astype(np.float64).reshape(expected.shape) - expected).max(initial=0)
        )
        if difference <= _TOLERANCE.get(str(result.dtype), 1e-4):  # False for not a number
            return
        seen, causal = self._seen(core, form, past), _causal(self.length, past, form.window)
        unlike = np.flatnonzero((seen != causal).any(-1))
        text = f"with {past} past tokens and {self.length} new ones, "
        if unlike.size:
            i = int(unlike[0])
            text += (
                f"new token {i} sees {_places(seen[i])}, and in causal attention it sees "
                f"{_places(causal[i])}"
            )
        else:
            text += (
                f"its results differ by {difference:.2g} from causal attention with the scale "
                f"{form.scale:g}; scores with another bias than a mask are not supported"
            )
        self._refuse(core, text)

    def _refuse(self, core: AttentionCore, reason: str) -> None:
        raise FrontendError(
            f"{self.where}: {describe_node(core.last)}: the attention of '{core.values.past}' "
            f"cannot use a cache of fixed capacity: {reason}. Leave the option state out, or "
            f"export the model with causal attention"
        )


def _causal(length: int, past: int, window: int) -> Array:
    """Which tokens those of a call see, bool[length, past + length]."""
    last = past + np.arange(length)[:, None]
    places = np.arange(past + length)
    seen: Array = places <= last
    return seen if window < 0 else seen & (places > last - window)


def _causal_attention(form: CoreForm, queries: Array, keys: Array, rows: Array, past: int) -> Array:
    """Return the results, [heads, length, size]; operands are [heads or groups, tokens, size]."""
    is_seen, group = _causal(queries.shape[1], past, form.window), form.heads // form.shared
    results = np.empty(queries.shape)
    for head, each in enumerate(queries):  # one by one, as all scores may take much memory
        scores = form.scale * (each @ keys[head // group].T)
        if form.softcap:
            scores = form.softcap * np.tanh(scores / form.softcap)
        scores = np.where(is_seen, scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        results[head] = (shares / shares.sum(-1, keepdims=True)) @ rows[head // group]
    return results


def _places(seen: Array) -> str:
    places = np.flatnonzero(seen)
    if places.size and places[-1] - places[0] + 1 == places.size:
        return f"the tokens {places[0]} to {places[-1]}"
    shown = ", ".join(map(str, places[:_SHOWN]))
    return f"the tokens {shown or 'none'}{', ...' if places.size > _SHOWN else ''}"
