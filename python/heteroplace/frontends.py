"""The seam `Frontend`: the file of a model -> a Relay module, by the part that reads its format.

A part registers one in the group `heteroplace.frontends`; ours is `onnx`. This module imports no
TVM: commands check a file and its reader before they load it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import FrontendError, MissingPackageError
from heteroplace.model.solution import Solution
from heteroplace.registry import load_plugins
from heteroplace.state_option import StateNames


class Imported(Protocol):
    """A model in Relay."""

    @property
    def mod(self) -> Any:
        """Typed module, `tvm.IRModule`; its `main` takes the inputs, then `params`, in order."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Weights by parameter name, `tvm.nd.NDArray`; they are not bound into `mod`."""

    @property
    def inputs(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Input name -> (shape, dtype), in the order of the file."""

    @property
    def report(self) -> tuple[str, ...]:
        """Lines: what the import changed."""


class Frontend(Protocol):
    """What commands need to know of a format of models. All but `check_installed` may load TVM."""

    suffixes: tuple[str, ...]
    """Of the files that it reads, in lower case: (".onnx",)."""

    def check_installed(self) -> None:
        """Raise MissingPackageError if a package that reads the format is missing."""

    def reads(self, model: object) -> bool:
        """Return whether this is a model in memory that `import_file` takes."""

    def import_file(
        self,
        model: object,
        *,
        shapes: Mapping[str, Sequence[int]],
        values: Mapping[str, Any] | None = None,
        batch: int | None = None,
        is_any_batch: bool = False,
        keeps_weights: bool = False,
        state: StateNames = "",
    ) -> Imported:
        """Import a model.

        Parameters
        ----------
        model
            The path of a file, or a model in memory that `reads` accepts.
        shapes
            Sizes of inputs that the file leaves free; with `batch` a first one may be -1.
        values
            Values of inputs that become constants.
        batch
            Rows of the inputs whose first size is free.
        is_any_batch
            These inputs take any number of rows.
        keeps_weights
            Small tensors stay parameters, so that they can be trained.
        state
            The option `state`: caches that grow with each call get a fixed capacity.

        Raises
        ------
        FrontendError
            The file cannot be read, or sizes are missing or wrong.
        UnsupportedRelayError
            The rows cannot be followed through an op.
        """

    def free_sizes(
        self, model: object, shapes: Mapping[str, Sequence[int]], state: StateNames = ""
    ) -> dict[str, tuple[int | str, ...]]:
        """Return the sizes of each input that leaves one free: a number, or the name of a free one.

        `shapes` fixes those of its inputs, but for a size of -1. With `state`, the mask of a cache
        that grows has the size of the past. Empty if the file cannot be read.
        """

    def fixed_by_arrays(
        self, path: Path, arrays: Mapping[str, Any], batch: int | None
    ) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
        """Return the free sizes (-1: rows, by `batch`) and the values that arrays for inputs fix.

        Values are lists or numbers. Both are empty if the file cannot be read.
        """

    def weight_files(self, path: Path) -> Sequence[str]:
        """Return the files with weights that a file refers to, relative to its folder."""

    def read_devices(self, model: object) -> Mapping[str, str]:
        """Return the device of each node that the model annotates with one, by the node's name."""

    def check_annotatable(self, path: Path, output: str) -> None:
        """Raise FrontendError, before any work, where `annotate` could not write the file."""

    def annotate(self, path: Path, output: str, solution: Solution) -> None:
        """Write the model with the devices of a plan."""


def has_free_batch(free_sizes: Mapping[str, Sequence[int | str]]) -> bool:
    """Return whether an input leaves the number of its rows free.

    Parameters
    ----------
    free_sizes
        As `Frontend.free_sizes` returns them.

    >>> has_free_batch({"x": (4, "height")}), has_free_batch({"x": ("batch", 3)})
    (False, True)
    """
    return any(shape and isinstance(shape[0], str) for shape in free_sizes.values())


def open_sizes(
    frontend: Frontend, model: object, names: Collection[str], state: StateNames
) -> dict[str, tuple[int | str, ...]]:
    """Return the free sizes of inputs, in the way in which all these names of sizes are used.

    A mask of tokens whose size has a name of its own has the size of the past with state, and
    either name may be used.
    """
    if state:
        free = frontend.free_sizes(model, {}, state)
        if set(names) <= {size for shape in free.values() for size in shape}:
            return free
    return frontend.free_sizes(model, {})


def named_shapes(
    free_sizes: Mapping[str, Sequence[int | str]], sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of inputs whose free sizes are given by name.

    Parameters
    ----------
    free_sizes
        As `Frontend.free_sizes` returns them. A first size that is not given is -1: rows.

    Raises
    ------
    FrontendError
        No input has a free size of some name.

    Examples
    --------
    >>> named_shapes({"ids": ("rows", "length"), "x": ("rows", "width")}, {"length": 16})
    {'ids': (-1, 16)}
    """
    names = {size for shape in free_sizes.values() for size in shape if isinstance(size, str)}
    for name in sizes:
        if name not in names:
            free = ", ".join(sorted(names)) or "none"
            raise FrontendError(
                f"no input has a free size {name!r}; free are: {free}{did_you_mean(name, names)}"
            )
    shapes = {}
    for name, shape in free_sizes.items():
        if not any(size in sizes for size in shape):
            continue
        given = [sizes.get(size, size) if isinstance(size, str) else size for size in shape]
        given = [-1 if isinstance(given[0], str) else given[0], *given[1:]]
        if not any(isinstance(size, str) for size in given):
            shapes[name] = tuple(map(int, given))
    return shapes


def frontend_of(path: str | Path) -> Frontend:
    """Return the front end for a file, by its suffix; ours reads files of any other suffix.

    Raises
    ------
    MissingPackageError
        None is registered.
    """
    frontends: Sequence[Frontend] = tuple(load_plugins("frontends").values())
    if not frontends:
        raise MissingPackageError(
            f"{path}: no installed package reads models; install heteroplace with its part `onnx`, "
            f"or hand a Relay module to HeteroPlace"
        )
    suffix = Path(path).suffix.lower()
    return next((each for each in frontends if suffix in each.suffixes), frontends[0])


def frontend_of_object(model: object) -> Frontend:
    """Return the front end that reads a model in memory.

    Raises
    ------
    FrontendError
        None reads it.
    """
    frontends: Mapping[str, Frontend] = load_plugins("frontends")
    for frontend in frontends.values():
        if frontend.reads(model):
            return frontend
    raise FrontendError(
        f"model is of type {type(model).__name__}; expected the path of a model, a Relay module "
        f"(tvm.IRModule), the result of heteroplace.frontend.from_onnx or from_torch, or a model "
        f"in memory that a front end reads ({', '.join(frontends) or 'none is installed'}), such "
        f"as an onnx.ModelProto"
    )
