"""Sizes of inputs as tvmc has them -> those that `from_onnx` takes; and how commands take them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from heteroplace.errors import FrontendError

Shapes = dict[str, tuple[int, ...]]
INPUT_OPTION = "--input NAME=1,3,224,224"
TVMC_OPTION = '--input-shapes "name:[1,3,224,224] name2:[1,8]"'


def plain_shapes(shapes: Mapping[str, Sequence[object]] | None) -> Shapes:
    """Return shapes as TVM's driver has read them, with -1 for a size that is left open.

    It makes an object of Relay of any size below 1.
    """
    return {
        name: tuple(size if isinstance(size, int) else -1 for size in shape)
        for name, shape in (shapes or {}).items()
    }


@contextmanager
def as_options(*options: str) -> Iterator[None]:
    """Say in a FrontendError about shapes, which speaks to Python, how they are given here.

    Parameters
    ----------
    options
        Those of this command, as a user types them.
    """
    try:
        yield
    except FrontendError as err:
        if "input_shapes" not in str(err):
            raise
        raise FrontendError(f"{err} (on the command line: {'; '.join(options)})") from err
