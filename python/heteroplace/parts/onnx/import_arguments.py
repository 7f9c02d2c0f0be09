"""Arguments of `from_onnx` -> a FrontendError where one is of a wrong type."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import NoneType

import numpy as np
from onnx import ModelProto

from heteroplace.argument_checks import check_mapping, check_sequence, check_type
from heteroplace.errors import FrontendError


def check_arguments(model: object, shapes: object, values: object, batch: object) -> None:
    """Raise FrontendError unless the arguments of `from_onnx` are of the types that it takes."""
    expected = "the path of an .onnx file, or an onnx.ModelProto: of bytes, onnx.load_from_string"
    check_type("path_or_model", model, (str, os.PathLike, ModelProto), expected, FrontendError)
    if shapes is not None:
        expected = "shapes by the names of inputs, such as {'x': (1, 3, 224, 224)}"
        check_mapping("input_shapes", shapes, expected, FrontendError)
        assert isinstance(shapes, Mapping)
        for name, shape in shapes.items():
            check_sequence(
                *(f"input_shapes[{name!r}]", shape, (int, np.integer)),
                "whole numbers, such as (1, 3)",
                FrontendError,
            )
    if values is not None:
        check_mapping("input_values", values, "arrays by the names of inputs", FrontendError)
    expected = "a whole number, 'symbolic' or None"
    check_type("batch", batch, (int, str, NoneType), expected, FrontendError)
