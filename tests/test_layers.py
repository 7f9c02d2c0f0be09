"""The order of the layers, read from import statements and from strings that name modules; nothing
is imported to check it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "python" / "heteroplace"

# Each part with its layer; a part imports from lower ones and from itself. Where two parts of one
# layer build on each other, the second number orders them.
LAYERS = {
    "terminal": (0, 0),
    "entries": (0, 0),
    "control_groups": (0, 0),
    "entry": (0, 0),
    "interrupts": (0, 1),
    "tvm_wheel": (0, 0),
    "tvm_interface": (0, 0),
    "errors": (0, 1),
    "argument_checks": (0, 2),
    "options": (0, 3),
    "registry": (0, 2),
    "option_types": (0, 4),
    "model": (0, 3),
    "files": (0, 4),
    "native": (1, 0),
    "tvm_import": (0, 0),
    "nvrtc": (1, 0),
    "stage_log": (1, 2),
    "forked_jobs": (1, 3),
    "stats": (1, 0),
    "bfloat16_bits": (1, 0),
    "report": (1, 1),
    "coarsen": (2, 0),
    "costs": (2, 0),
    "simulate": (2, 0),
    "solve": (3, 0),
    "effort_option": (0, 4),
    "precision_option": (0, 4),
    "state_option": (0, 4),
    "place_options": (3, 1),
    "option_keywords": (3, 2),
    "questions": (3, 1),
    "written_files": (3, 1),
    "frontends": (3, 1),
    "listed_sizes": (0, 3),
    "entry_calls": (0, 4),
    "peers": (3, 1),
    "command_parser": (3, 2),
    "tvm_bridge": (5, 0),
    "tvm_hooks": (5, 1),
    "machine": (5, 1),
    "relay": (5, 2),
    "tir": (6, 0),
    "lower": (6, 1),
    "run": (7, 0),
    "measure": (7, 1),
    "pipeline": (8, 0),
    "hetero_place": (8, 1),
    "replanning": (8, 1),
    "loading": (8, 2),
    "model_network": (8, 2),
    "model_entries": (8, 3),
    "compiling": (9, 0),
    "progress": (8, 1),
    "parts.hosts": (8, 9),
    "parts.kernels": (8, 9),
    "parts.onnx": (8, 9),
    "parts.parallel": (8, 9),
    "parts.routing": (8, 9),
    "parts.throughput": (8, 9),
    "parts.exports": (9, 0),
    "parts.text": (9, 0),
    "parts.serving": (9, 1),
    "parts.torch": (9, 0),
    "cli": (9, 0),
    "demo": (9, 1),
}
TVM_LAYERS = range(5, 10)
# What layer 0 may import beside the standard library: a decoder of JSON that depends on nothing.
IN_LAYER_0 = {"msgspec"}
# What a function of layer 0 may import: for the faults of a file, and for a view of a graph.
LATE_IN_LAYER_0 = {"jsonschema", "networkx"}
# Programs and the pass on top: they may use the public names of `heteroplace`, as users do.
TOP_LAYER = 9
NOT_IMPORTED = {"cli", "compiling", "demo", "hetero_place", "loading"}
# The parts that bind C++ of their own: each in its folder `native`.
BINDING_PARTS = {"parts.hosts", "parts.kernels", "parts.throughput"}
# What the commands of parts share with all others.
OF_COMMANDS = (
    "heteroplace.cli.problem_arguments.",
    "heteroplace.cli.shared.",
    "heteroplace.cli.models.",
    "heteroplace.cli.open_solution.",
)
# Registries that name entries of a higher layer, with the parts they name: who asks imports them.
REGISTRIES = {"place_options.py": {"measure"}, "model/answers.py": {"questions", "simulate"}}
_MODULE = re.compile(r"heteroplace(\.[a-z_0-9]+)+(:[A-Za-z_]\w*)?")
# Third-party packages that a function may import: large, or not always installed.
LATE_IMPORTS = {
    "attr",
    "google",
    "highspy",
    "iree",
    "gurobipy",
    "jsonschema",
    "MNN",
    "_tools",  # the converter of MNN
    "matplotlib",
    "mpi4py",
    "networkx",
    "onnx",
    "onnxruntime",
    "openvino",
    "ortools",
    "psutil",
    "pymetis",
    "saga",
    "pynvml",
    "rich",
    "scipy",
    "tokenizers",
    "tvm",
}


@dataclass(frozen=True)
class Import:
    """One imported name."""

    name: str
    """Dotted, with the imported attribute: "heteroplace.errors.PlanError"."""
    line: int
    """Where it stands."""
    is_late: bool
    """It stands inside a function."""
    dots: int
    """Leading dots of a relative import."""
    is_for_types: bool = False
    """It stands in a block that only type checkers read."""

    @property
    def root(self) -> str:
        """The top-level package."""
        return self.name.split(".")[0]


def is_import_call(call: ast.Call) -> bool:
    """Tell whether this is `import_module("name")`, under importlib or alone."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    is_import = name == "import_module"
    return is_import and bool(call.args) and isinstance(call.args[0], ast.Constant)


def read_imports(tree: ast.Module) -> Iterator[Import]:
    """Yield the imports of a module, `importlib.import_module("name")` included."""

    def visit(node: ast.AST, is_late: bool, is_for_types: bool = False) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, is_late, 0, is_for_types)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}" if node.module else alias.name
                yield Import(name, node.lineno, is_late, node.level, is_for_types)
        elif isinstance(node, ast.Call) and is_import_call(node):
            yield Import(ast.literal_eval(node.args[0]), node.lineno, is_late, 0)
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        is_typing = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, is_late or is_function, is_for_types or is_typing)

    yield from visit(tree, False)


def read_entries(tree: ast.Module) -> Iterator[Import]:
    """Yield the modules of heteroplace that strings name: "heteroplace.solve.solvers:Solver"."""
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and _MODULE.fullmatch(node.value):
            yield Import(node.value.replace(":", "."), node.lineno, False, 0)


def is_module(package: Path, name: str) -> bool:
    """Tell whether a dotted name is a module of the package, or a name in one."""
    path = package.joinpath(*name.split(".")[1:])
    places = (path, path.parent)
    return any(at.is_dir() or at.with_suffix(".py").is_file() for at in places)


def check_package(package: Path) -> list[str]:
    """Return every breach of the rules as "file:line: what"."""
    faults = []
    for path in sorted(package.rglob("*.py")):
        inner = path.relative_to(package)
        steps = inner.as_posix().removesuffix(".py").split("/")
        part = part_of(steps)
        is_binding = steps[0] == "native" or (part in BINDING_PARTS and steps[2] == "native")
        tree = ast.parse(path.read_text())
        for found in read_imports(tree):
            if found.name.startswith("heteroplace._core"):
                if not is_binding:
                    faults.append(f"{inner.as_posix()}:{found.line}: only native imports _core")
                continue
            for fault in faults_of(part, found):
                faults.append(f"{inner.as_posix()}:{found.line}: {fault}")
        for found in read_entries(tree):
            if not is_module(package, found.name):
                faults.append(f"{inner.as_posix()}:{found.line}: there is no {found.name}")
            elif found.name.split(".")[1] not in REGISTRIES.get(inner.as_posix(), ()):
                for fault in faults_of(part, found):
                    faults.append(f"{inner.as_posix()}:{found.line}: {fault}")
        if not part.endswith("__init__") and part not in LAYERS:
            faults.append(f"{inner.as_posix()}:1: {part} has no layer in tests/test_layers.py")
    return faults


def part_of(steps: list[str]) -> str:
    """Return the part that a module is in: a folder of the package, or one of `parts`."""
    return ".".join(steps[:2]) if steps[0] == "parts" else steps[0]


def faults_of(part: str, found: Import) -> Iterator[str]:
    """Yield what is wrong with one import in a module of `part`."""
    layer = LAYERS.get(part, (TOP_LAYER, 0))
    if found.dots:
        yield f"relative import of {found.name}"
        return
    if found.root == "heteroplace":
        yield from faults_inside(part, layer, found)
        if found.is_late:
            yield f"{found.name} is imported inside a function"
        return
    is_standard = found.root in sys.stdlib_module_names
    if found.root == "tvm" and layer[0] not in TVM_LAYERS:
        yield f"layer {layer[0]} imports tvm"
    is_view = found.is_for_types or (found.is_late and found.root in LATE_IN_LAYER_0)
    if layer[0] == 0 and not (is_standard or is_view or found.root in IN_LAYER_0):
        yield f"layer 0 imports {found.root}, which is not in the standard library"
    if found.is_late and found.root not in LATE_IMPORTS:
        yield f"{found.root} is imported inside a function"


def faults_inside(part: str, layer: tuple[int, int], found: Import) -> Iterator[str]:
    """Yield what is wrong with an import of heteroplace itself."""
    steps = found.name.split(".")
    target = part_of(steps[1:]) if len(steps) > 1 else ""
    if part in {"__init__", target} or (
        part.startswith("parts.") and found.name.startswith(OF_COMMANDS)
    ):
        return
    elif part in ("tvm_wheel", "tvm_interface"):
        yield f"{part} runs alone and imports nothing of heteroplace"
    elif target in NOT_IMPORTED:
        yield f"nothing imports {target}"
    elif target not in LAYERS:
        if layer[0] < TOP_LAYER:
            yield f"{found.name}: only layer {TOP_LAYER} uses the names of the package itself"
    elif LAYERS[target] >= layer:
        yield f"{part} (layer {layer[0]}) imports {target} (layer {LAYERS[target][0]})"


def test_every_module_imports_only_from_lower_layers() -> None:
    faults = check_package(PACKAGE)
    assert not faults, "\n".join(faults)


def files_that_import_a_part(package: Path) -> dict[str, set[str]]:
    """Return the files outside of `parts` that import a part, or name it in a string."""
    registries: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        inner = path.relative_to(package)
        tree = ast.parse(path.read_text())
        if inner.as_posix() == "__init__.py":
            tree = without_typing(tree)
        names = {each.name for each in (*read_imports(tree), *read_entries(tree))}
        parts = {name for name in names if name.startswith("heteroplace.parts.")}
        if parts and inner.parts[0] != "parts":
            registries[inner.as_posix()] = parts
    return registries


def without_typing(tree: ast.Module) -> ast.Module:
    """Return a module without what type checkers alone read: the types of its public names."""
    body = [
        line
        for line in tree.body
        if not (isinstance(line, ast.If) and getattr(line.test, "id", "") == "TYPE_CHECKING")
    ]
    return ast.Module(body, [])


def test_the_core_imports_no_part() -> None:
    assert files_that_import_a_part(PACKAGE) == {}


@pytest.mark.parametrize(
    ("file", "text", "is_fault"),
    [
        ("run/x.py", "from heteroplace.parts.kernels import cpu_provider", True),
        ("run/x.py", "from heteroplace.parts import kernels", True),
        ("solve/x.py", "X = 'heteroplace.parts.throughput.split.module_bound'", True),
        ("run/x.py", "X = 'heteroplace.parts.kernels.cpu_provider:CPU'", True),
        ("run/x.py", "from heteroplace.registry import load_plugins", False),
        ("__init__.py", "if TYPE_CHECKING:\n    from heteroplace.parts import onnx", False),
        ("__init__.py", "from heteroplace.parts import onnx", True),
        ("run/x.py", "if TYPE_CHECKING:\n    from heteroplace.parts import onnx", True),
        ("parts/onnx/x.py", "from heteroplace.parts.kernels import cpu_provider", False),
    ],
)
def test_an_import_of_a_part_is_seen(tmp_path: Path, file: str, text: str, is_fault: bool) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert set(files_that_import_a_part(tmp_path)) == ({file} if is_fault else set())


def test_the_package_is_found() -> None:
    assert (PACKAGE / "errors.py").is_file()
    assert any(read_imports(ast.parse((PACKAGE / "tvm_bridge.py").read_text())))


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("model/plan.py", "from heteroplace.solve import milp", "model (layer 0) imports solve"),
        ("errors.py", "import heteroplace.model.plan", "errors (layer 0) imports model"),
        ("model/plan.py", "if TYPE_CHECKING:\n  import matplotlib", None),
        ("model/plan.py", "import matplotlib", "matplotlib, which is not in the standard library"),
        ("coarsen/topo.py", "from heteroplace import costs", "coarsen (layer 2) imports costs"),
        ("costs/links.py", "from heteroplace import _core", "only native imports _core"),
        ("costs/links.py", "from heteroplace._core import f", "only native imports _core"),
        ("solve/milp.py", "import tvm.relay", "layer 3 imports tvm"),
        ("solve/milp.py", "def f():\n    import tvm", "layer 3 imports tvm"),
        ("solve/milp.py", "import importlib\nimportlib.import_module('tvm')", "imports tvm"),
        ("model/graph.py", "import numpy as np", "numpy, which is not in the standard library"),
        ("run/executor.py", "import heteroplace.cli.main", "nothing imports cli"),
        ("cli/main.py", "from heteroplace import hetero_place", "nothing imports hetero_place"),
        ("run/executor.py", "from heteroplace import Plan", "only layer 9 uses the names"),
        ("run/executor.py", "import heteroplace", "only layer 9 uses the names"),
        ("run/executor.py", "from . import measure", "relative import of measure"),
        ("run/executor.py", "def f():\n    import json", "json is imported inside a function"),
        ("run/x.py", "class A:\n  def f(self):\n    from heteroplace import errors", "inside"),
        ("tvm_wheel.py", "from heteroplace.errors import PlanError", "tvm_wheel runs alone"),
        ("extras/new.py", "", "extras has no layer"),
        ("solve/milp.py", "def f():\n    from ortools.sat import cp_model", None),
        ("relay/extract.py", "from heteroplace.tvm_bridge import require_tvm", None),
        ("run/executor.py", "from heteroplace.run.profile.costs import f\nimport tvm", None),
        ("native/__init__.py", "from heteroplace import _core", None),
        ("parts/throughput/native/x.py", "import heteroplace._core as _core", None),
        ("parts/throughput/split/x.py", "import heteroplace._core", "only native imports _core"),
        ("parts/routing/native/x.py", "import heteroplace._core", "only native imports _core"),
        ("cli/show.py", "from heteroplace import Plan, HeteroPlace", None),
        ("solve/solvers.py", "X = 'heteroplace.run.executor:Executor'", "imports run (layer 7)"),
        ("place_options.py", "X = 'heteroplace.run.executor:Executor'", "imports run (layer 7)"),
        ("place_options.py", "X = 'heteroplace.measure.transfers.links:Links'", None),
        ("solve/solvers.py", "X = 'heteroplace.solve.lost:Solver'", "there is no"),
        ("cli/main.py", "import importlib\nimportlib.import_module('heteroplace.lost.x')", "no"),
        ("cli/main.py", "X = 'heteroplace.run.executor'", None),
        ("cli/main.py", "X = 'heteroplace.run.executor is started'", None),
        ("__init__.py", "from heteroplace.hetero_place import HeteroPlace", None),
    ],
)
def test_the_checker_sees(tmp_path: Path, file: str, text: str, fault: str | None) -> None:
    for module in ("run/executor.py", "measure/transfers/links.py"):
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).touch()
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    faults = check_package(tmp_path)
    if fault is None:
        assert faults == []
    else:
        assert len(faults) == 1
        assert fault in faults[0]
