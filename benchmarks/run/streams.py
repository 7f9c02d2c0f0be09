"""`run --streams`: trained models that read a minute of audio, with their state in a session.

Each call reads a window of samples. Ours keeps the state in a session; onnxruntime, at its default
settings, returns the state, and the caller hands it over with the next window. Both run in turns,
window by window. The state is compared after the last one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx.parser import parse_model

import heteroplace
from benchmarks.differences import relative_difference
from benchmarks.row_table import row_table
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from zoo.models.catalogue import SMALLEST, matching_names
from zoo.trained import TRAINED

_RATE = 16_000
"""Samples a second."""
_MODELS = ("silero_vad", "silero_vad_16k", "silero_vad_half", "silero_vad_op18")
_SMALL = """
<ir_version: 8, opset_import: ["": 17]>
filter (float[1, 64] input, float[1, 64] state) => (float[1, 64] output, float[1, 64] stateN)
{ sum = Add(input, state)  stateN = Tanh(sum)  output = Relu(stateN) }
"""


class _Stream(NamedTuple):
    model: onnx.ModelProto
    window: int
    """Samples that a call reads."""
    step: int
    """From the first sample of a call to that of the next one."""
    seconds: float
    values: dict[str, int]
    """Of inputs that are fixed when it is compiled."""


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the models whose name matches the regular expression `only`; yield the rows."""
    for name in matching_names(only, _MODELS):
        yield _row(name, prefixed(say, name))


def _row(name: str, say: Callable[[str], None]) -> dict[str, object]:
    """Run one model over its audio; times in ms of a call."""
    stream = _stream(name, say)
    say("compiling")
    executable = heteroplace.compile(
        stream.model,
        input_shapes={"input": (1, stream.window), "state": _state_shape(stream.model)},
        input_values=stream.values,
        state="auto",
    )
    say("measuring")
    peer = onnxruntime.InferenceSession(stream.model.SerializeToString())
    given = {each.name for each in peer.get_inputs()}
    fixed = {key: np.array(_RATE) for key in given - {"input", "state"}}
    state = np.zeros(_state_shape(stream.model), "float32")
    times: dict[str, list[float]] = {"ours": [], "onnxruntime": []}
    difference = 0.0
    with Executor(executable) as executor:
        session = executor.session()
        names = {port for port, _, _ in session.inputs} - {"input"}
        own_fixed = {key: fixed[key] for key in names}
        for window in _windows(stream):
            begin = time.perf_counter()
            (ours,) = session.run({"input": window, **own_fixed})
            middle = time.perf_counter()
            theirs, state = peer.run(None, {"input": window, "state": state, **fixed})
            times["onnxruntime"].append(time.perf_counter() - middle)
            times["ours"].append(middle - begin)
            difference = max(difference, float(np.abs(ours - theirs).max()))
        own_state = session.state["state"]
    ratios = [a / b for a, b in zip(times["ours"], times["onnxruntime"], strict=True)]
    return {
        "name": name,
        "calls": len(ratios),
        **{f"{each}_ms": round(1e3 * median(times[each]), 4) for each in times},
        "ratio": round(median(ratios), 3),
        "difference": difference,
        "state_difference": relative_difference([own_state], [state]),
        "onnxruntime": onnxruntime.__version__,
    }


def _stream(name: str, say: Callable[[str], None]) -> _Stream:
    if name == SMALLEST:
        return _Stream(parse_model(_SMALL), 64, 64, 0.1, {})
    say("downloading")
    model = TRAINED[name]
    _, window = model.shapes["input"]
    content = onnx.load_from_string(model.content())
    return _Stream(content, window, window - 64, 60, dict(model.values))


def _state_shape(model: onnx.ModelProto) -> tuple[int, ...]:
    """An open size is the number of streams, 1."""
    (state,) = (value for value in model.graph.input if value.name == "state")
    return tuple(dim.dim_value or 1 for dim in state.type.tensor_type.shape.dim)


def _windows(stream: _Stream) -> Iterator[Any]:
    """Noise that swells and fades, with a tone that comes and goes."""
    seconds = np.arange(int(stream.seconds * _RATE)) / _RATE
    noise = np.random.default_rng(0).standard_normal(len(seconds))
    loudness, is_on = np.abs(np.sin(2.5 * seconds)), np.sin(1.3 * seconds) > 0
    audio = (0.3 * loudness * noise + 0.3 * np.sin(1300 * seconds) * is_on).astype("float32")
    for first in range(0, len(audio) - stream.window + 1, stream.step):
        yield np.ascontiguousarray(audio[np.newaxis, first : first + stream.window])


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text."""
    columns = {
        "name": "model",
        "calls": "calls",
        "ours_ms": "ours",
        "onnxruntime_ms": "onnxruntime",
        "ratio": "ours / onnxruntime",
        "difference": "difference",
        "state_difference": "of the state",
    }
    return row_table(rows, columns)
