"""Sizes of inputs as tvmc has them -> those that `from_onnx` takes. Loaded late: needs TVM."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tvm.driver.tvmc.shape_parser import parse_shape_string

from heteroplace.errors import FrontendError

Shapes = dict[str, tuple[int, ...]]


def read_shapes(text: str | None) -> Shapes:
    """Return what --input-shapes says; of what is left out: nothing.

    Raises
    ------
    FrontendError
        It is no text of shapes.
    """
    if text is None:
        return {}
    try:
        return plain_shapes(parse_shape_string(text))
    except argparse.ArgumentTypeError as err:
        raise FrontendError(f"--input-shapes {text!r}: {err}") from err


def plain_shapes(shapes: Mapping[str, Sequence[object]] | None) -> Shapes:
    """Return shapes as TVM's driver has read them, with -1 for a size that is left open.

    It makes an object of Relay of any size below 1.
    """
    return {
        name: tuple(size if isinstance(size, int) else -1 for size in shape)
        for name, shape in (shapes or {}).items()
    }


@contextmanager
def as_options(*others: str) -> Iterator[None]:
    """Say in a FrontendError about shapes, which speaks to Python, how they are given here.

    Parameters
    ----------
    others
        Options that this command has beside --input-shapes for them.
    """
    try:
        yield
    except FrontendError as err:
        if "input_shapes" not in str(err):
            raise
        said = "; ".join(('--input-shapes "name:[1,3,224,224] name2:[1,8]"', *others))
        raise FrontendError(f"{err} (on the command line: {said})") from err
