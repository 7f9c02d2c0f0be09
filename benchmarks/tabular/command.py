"""`benchmarks tabular`: scikit-learn pipelines, as skl2onnx exports them, against onnxruntime.

Each pipeline is fitted, exported with the default options (a ZipMap after each classifier),
imported, placed over two devices, built and run. Integers and labels must be equal to
onnxruntime's, floats to within `TOLERANCE`; or a typed error must say why there is none. A pipeline
that takes longer than `LIMIT_S` is ended, and counts as too slow.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType
from skl2onnx.common.exceptions import MissingConverter

from benchmarks.conformance.cases import Case
from benchmarks.conformance.pool import run_cases
from benchmarks.conformance.worker import EQUAL, RESULTS
from benchmarks.tabular.pipelines import dataset, pipelines
from heteroplace.parts.onnx.prepare.onnx_child import load_onnxruntime
from heteroplace.report.tables import format_table

TOLERANCE = 1e-5
"""Of floats, over the expected one; and over the largest of the same output, for sums."""
TARGET_OPSET = {"": 17, "ai.onnx.ml": 3}
NUM_TEST_ROWS = 20
LIMIT_S = 120.0
"""A pipeline takes seconds; this is for a busy machine."""
_NUM_WORKERS = 2
_MAX_REASON = 100
_NOT_EXPORTED = "not exported"


def run(only: str, say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Check the pipelines whose name matches; yield a row for each."""
    cases = []
    for pipeline in pipelines():
        if not re.search(only, pipeline.name):
            continue
        case = make_case(pipeline, *dataset(pipeline.data))
        if isinstance(case, str):
            yield {"case": pipeline.name, "result": _NOT_EXPORTED, "reason": case}
        else:
            cases.append(case)
    yield from run_cases(cases, _NUM_WORKERS, LIMIT_S, say)


def make_case(pipeline: Any, rows: np.ndarray, targets: np.ndarray | None) -> Case | str:
    """Return a fitted pipeline as an ONNX model with inputs and onnxruntime's outputs.

    Or why skl2onnx does not export it, or onnxruntime does not run it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that have not converged, and of old options
        estimator = pipeline.make().fit(rows, targets)
        kind = DoubleTensorType if pipeline.is_double else FloatTensorType
        inputs = [("x", kind([None, rows.shape[1]]))]
        options = {}
        if pipeline.is_double and hasattr(estimator, "predict_proba"):
            options = {id(estimator): {"zipmap": False}}  # a ZipMap takes float32 only
        try:
            model = convert_sklearn(
                estimator, initial_types=inputs, options=options, target_opset=TARGET_OPSET
            )
        except (MissingConverter, NotImplementedError, RuntimeError, AssertionError) as err:
            return f"skl2onnx: {type(err).__name__}: {str(err).splitlines()[0][:_MAX_REASON]}"
    given = rows[:NUM_TEST_ROWS].astype("float64" if pipeline.is_double else "float32")
    raised = load_onnxruntime().capi.onnxruntime_pybind11_state
    try:
        outputs = _reference_outputs(model, given)
    except (raised.Fail, raised.InvalidGraph, raised.NotImplemented) as err:
        return f"onnxruntime: {str(err).splitlines()[0][:_MAX_REASON]}"
    name = type(estimator).__name__
    return Case(pipeline.name, name, model, [([given], outputs)], TOLERANCE, 0.0, TOLERANCE)


def _reference_outputs(model: onnx.ModelProto, rows: np.ndarray) -> list[np.ndarray]:
    """onnxruntime's outputs as arrays: maps as rows of scores, names as their numbers."""
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = _class_names(model)
    return [_as_array(value, names) for value in session.run(None, {"x": rows})]


def _as_array(value: Any, names: Mapping[str, int]) -> np.ndarray:
    if isinstance(value, list) and isinstance(value[0], dict):
        return np.array([list(row.values()) for row in value], np.float32)
    array: np.ndarray = np.asarray(value)  # of a sequence of arrays, too
    if array.dtype.kind in "OU":
        array = np.vectorize(names.__getitem__, otypes=[np.int64])(array)
    return array


def _class_names(model: onnx.ModelProto) -> dict[str, int]:
    """The names of classes and their numbers, from the ZipMap that a classifier ends with."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "ZipMap" and attribute.name == "classlabels_strings":
                return {name.decode(): index for index, name in enumerate(attribute.strings)}
    return {}


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the pipelines with their results, and the counts."""
    counts = Counter(str(row["result"]) for row in rows)
    cells = [
        [str(row["case"]), str(row["result"]), " ".join(str(row["reason"]).split())[:_MAX_REASON]]
        for row in rows
    ]
    text = format_table(["pipeline", "result", "reason"], cells, "<<<")
    totals = ", ".join(f"{counts[kind]} {kind}" for kind in (*RESULTS, _NOT_EXPORTED))
    return f"{text}\n\n{len(rows)} pipelines: {totals} ({counts[EQUAL]} equal to onnxruntime)"
