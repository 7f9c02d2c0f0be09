"""The importer's tables -> the page that says which ONNX ops it compiles, how, and which not."""

from __future__ import annotations

from onnx import defs
from tvm.relay.frontend import onnx as stock

from heteroplace.parts.onnx.converters.converter_table import CONVERTERS
from heteroplace.parts.onnx.converters.microsoft.microsoft import (
    MICROSOFT_CONVERTERS,
    MICROSOFT_DOMAIN,
    MICROSOFT_SHARED,
)
from heteroplace.parts.onnx.converters.ml.ml import ML_CONVERTERS, ML_DOMAIN, ML_NOTES
from heteroplace.parts.onnx.converters.refused import REFUSED
from heteroplace.parts.onnx.known_ops import OTHER_OPS
from heteroplace.tvm_bridge import register_onnx_mapping_shim

OPSET = 17
"""What models are brought to before they are converted."""


def op_rows() -> list[tuple[str, str, str]]:
    """Return name, who converts it, and a note, for each op of the standard."""
    register_onnx_mapping_shim()
    # What the importer asks of a graph it does not need here.
    table = stock._get_convert_map(OPSET)
    schemas = {one.name: one for one in defs.get_all_schemas() if one.domain == ""}
    return [(name, *_told(name, schemas[name], name in table)) for name in sorted(schemas)]


def _told(name: str, schema: defs.OpSchema, is_stock: bool) -> tuple[str, str]:
    if name in REFUSED:
        return "refused", REFUSED[name]
    if name in CONVERTERS and name not in OTHER_OPS:
        return "heteroplace", _first_line(CONVERTERS[name].__doc__)
    if is_stock and name not in OTHER_OPS:
        return "TVM", ""
    if schema.has_function or schema.has_context_dependent_function:
        return "its definition", "written out by the standard's own function"
    if schema.deprecated:
        return "rewritten or refused", "deprecated in the standard"
    return "rewritten or refused", "known only where values are constant, or by a rewrite"


def ml_rows() -> list[tuple[str, str, str]]:
    """Return the same of each op of the domain of classical machine learning."""
    names = sorted({one.name for one in defs.get_all_schemas() if one.domain == ML_DOMAIN})
    return [(name, *_ml_entry(name)) for name in names]


def _ml_entry(name: str) -> tuple[str, str]:
    if name in ML_NOTES:
        return ML_NOTES[name]
    if name in ML_CONVERTERS:
        return "heteroplace", _first_line(ML_CONVERTERS[name].__doc__)
    return "refused", "no converter"


def microsoft_rows() -> list[tuple[str, str, str]]:
    """Return the same of each op of onnxruntime's own domain that is compiled."""
    rows = []
    for name in sorted({*MICROSOFT_CONVERTERS, *MICROSOFT_SHARED}):
        converter = MICROSOFT_CONVERTERS.get(name) or CONVERTERS.get(name)
        who = "TVM" if converter is None else "heteroplace"
        rows.append((name, who, _first_line(converter.__doc__) if converter else ""))
    return rows


def _first_line(text: str | None) -> str:
    return " ".join((text or "").strip().partition("\n\n")[0].split()).rstrip(".")


def op_pages() -> dict[str, str]:
    """Return the page by its name."""
    rows = op_rows()
    counts = {who: sum(row[1] == who for row in rows) for _, who, _ in rows}
    told = ", ".join(f"{count} {who}" for who, count in sorted(counts.items()))
    table, ml_table, microsoft_table = (
        "\n".join(f"| {name} | {who} | {note} |" for name, who, note in part)
        for part in (rows, ml_rows(), microsoft_rows())
    )
    return {
        "ops.md": "# Table of ops\n\nEvery op of the ONNX standard that the installed `onnx` "
        f"knows, and who turns it into Relay (opset {OPSET}, to which models are brought): {told}. "
        "Which cases of the standard's test suite pass, op by op, is in the conformance benchmark "
        "(`python -m benchmarks conformance`).\n\n"
        f"| op | converted by | note |\n|---|---|---|\n{table}\n\n"
        f"## {ML_DOMAIN}\n\nEstimators of scikit-learn, XGBoost and LightGBM use these ops. "
        "`python -m benchmarks tabular` compares pipelines with onnxruntime; "
        "[limits](../guide/limits.md) says what becomes of class names and ZipMaps.\n\n"
        f"| op | converted by | note |\n|---|---|---|\n{ml_table}\n\n"
        f"## {MICROSOFT_DOMAIN}\n\nonnxruntime's own ops. All that are not named here are refused."
        f"\n\n| op | converted by | note |\n|---|---|---|\n{microsoft_table}\n"
    }
