"""Without TVM the planning layers work, and what needs TVM says how to get it."""

from __future__ import annotations

import pytest

import heteroplace
from tests.programs import run_python

HIDE_TVM = """
import sys

class Hidden:
    '''Finds everything but tvm, as on a machine where it is not installed.'''

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tvm":
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path = [Hidden(finder) for finder in sys.meta_path]
"""


def run_without_tvm(program: str) -> str:
    return run_python(HIDE_TVM + program, "-W", "error")


PLAN = """
import heteroplace as hp
from heteroplace.model.cost import Cost, build_table
from heteroplace.solve import Problem, SolveOptions, get_solver
import heteroplace.solve

builder = hp.TaskGraphBuilder("pair")
x = builder.add_input("x", (4,), "float32")
for name in ("a", "b"):
    builder.add_task(hp.Task(name, "op"), [x])
    builder.add_tensor(name, (4,), "float32")
graph = builder.finalize(["a.0", "b.0"])
cluster = hp.Cluster(
    "two",
    (hp.Memory("ram", 10**6),),
    tuple(hp.Device(f"cpu.{n}", "cpu", "", 0, 0, (n,)) for n in range(2)),
    (),
    0,
)
costs = build_table(graph, cluster, lambda task, device: Cost.given(1000))
result = get_solver("heft").solve(Problem(graph, cluster, costs), SolveOptions(time_limit_s=1.0))
print(result.objective_ns, "tvm" in sys.modules)
"""


def test_planning_works_without_tvm() -> None:
    assert run_without_tvm(PLAN).split() == ["1000", "False"]


@pytest.mark.costly
def test_the_command_line_loads_neither_tvm_nor_the_libraries_of_other_solvers() -> None:
    program = """
import sys
from heteroplace.cli.main import make_parser
from heteroplace.solve import SOLVERS, get_solver
make_parser()
heft = get_solver("heft").objectives
print(heft, [name for name in ("tvm", "ortools", "pandas", "scipy") if name in sys.modules])
print(len(SOLVERS), get_solver("cpsat").objectives, "ortools" in sys.modules)
"""
    first, second = run_python(program).splitlines()
    assert first == "('latency',) []"
    assert second.endswith("('latency',) True")


def test_reports_and_clusters_work_without_tvm() -> None:
    program = "import heteroplace as hp; print(hp.local_cluster().devices[0].kind)"
    assert run_without_tvm(program).strip() == "cpu"


def test_files_are_run_without_tvm() -> None:
    program = "import heteroplace as hp; print(hp.load.__name__, hp.Executor.__name__)"
    assert run_without_tvm(program).strip() == "load Executor"


@pytest.mark.parametrize("name", ["build", "compile", "Executable", "HeteroPlace", "frontend"])
def test_what_needs_tvm_says_how_to_get_it(name: str) -> None:
    program = f"""
import heteroplace as hp
try:
    hp.{name}
except hp.HeteroPlaceError as error:
    print(type(error).__name__, isinstance(error, ImportError), error)
"""
    output = run_without_tvm(program)
    assert output.startswith("MissingTVMError True")
    assert "heteroplace setup-tvm" in output


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'bild'"):
        heteroplace.bild  # noqa: B018
