"""Rules for all tests: what they need, which cases they take, in which order they run."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from heteroplace.costs.store import PATH_VARIABLE
from tests import git_changes, reached_tests, selected_tests
from tests.corpus import set_seed
from tests.golden_files import check_golden
from tests.instances import diamond as make_diamond
from tests.strategies import Instance, num_cases

pytest_plugins = ["tests.left_out"]

# Properties that say nothing else.
settings.register_profile("heteroplace", num_cases(100))
settings.load_profile("heteroplace")

_TESTS = Path(__file__).resolve().parent
_LONGEST = ("cpp", "fake_cuda", "test_conformance", "fuzz")
"""Folders and files whose tests stay on one worker, and that would end last if they began late;
those with costly tests come next."""

_SLOW_TIMEOUT_S = 7200
"""Of a slow test, by the clock: other programs may leave it a tenth of a core."""


def pytest_configure(config: pytest.Config) -> None:
    """Take the cases of this commit: other ones for each, the same whenever it is tested.

    `--hypothesis-seed=N` takes others.
    """
    # Tests import onnxruntime themselves; it would write into the user's cache folder.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(git_changes.seed_of_commit(_TESTS))
    set_seed(config.option.hypothesis_seed)
    try:  # here, before pytest-xdist starts workers
        git_changes.base_of_change(_TESTS, config.getoption("since"))
    except git_changes.UnknownCommitError as fault:
        raise pytest.UsageError(f"--since: {fault}") from fault


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --update-golden and --since."""
    parser.addoption(
        "--since",
        default="",
        metavar="COMMIT",
        help="where CI is set, costly tests run for what changed since this commit; else since "
        "origin/main, the tag 'tested' or the day before",
    )
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what tests compare with tests/golden instead of comparing it; read the diff",
    )


def _why_no_relay() -> str | None:
    """Return why tests of Relay cannot run; the package is looked at, but not imported."""
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        return "no TVM is installed: python -m heteroplace.tvm_wheel install"
    if not (Path(spec.submodule_search_locations[0]) / "relay").is_dir():
        return "the TVM that is installed has no Relay: python -m heteroplace.tvm_wheel install"
    return None


def _why_no_gpu() -> str | None:
    """Return why tests of CUDA cannot run: no driver, or no device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver is installed"
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return "the NVIDIA driver does not start"
    return None if count.value else "this machine has no NVIDIA GPU"


def _leave_out_costly(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the costly tests that a run of CI does not take (`tests.selected_tests`)."""
    if not os.environ.get("CI") or os.environ.get("ALL_CASES"):
        return
    distance_of = _distances(config.getoption("since"))
    costly = [item for item in items if selected_tests.is_costly(item)]
    groups = selected_tests.groups_of(items, distance_of)
    chosen = selected_tests.choose(groups, selected_tests.LIMIT_S)
    reached = {group.name for group in groups if math.isfinite(group.distance)}
    dropped = [item for item in costly if selected_tests.group_of(item) not in chosen]
    for item in dropped:
        is_reached = selected_tests.group_of(item) in reached
        item.stash[selected_tests.KIND] = "reached" if is_reached else "unreached"
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        left_out = {*dropped}
        items[:] = [item for item in items if item not in left_out]


def _distances(since: str) -> Callable[[pytest.Item], float]:
    """Return how far tests are from the change: 0 for all of them where nobody knows it."""
    root = _TESTS.parent
    files = git_changes.files_of_change(root, since)
    if files is None:
        return lambda _: 0
    steps = reached_tests.distances(reached_tests.read_importers(root), files)

    def distance_of(item: pytest.Item) -> float:
        file = item.path.relative_to(root).as_posix()
        nodes = [reached_tests.module_of(file) or ""]
        if item.get_closest_marker("part") is not None:  # a program of tests/cpp
            nodes += [f"tests/cpp/{source}" for source in item.get_closest_marker("part").args[1:]]
        return min(steps.get(node, math.inf) for node in nodes)

    return distance_of


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out costly tests where CI is set, mark what lies in tests/relay and tests/gpu, and
    skip what this machine cannot run.

    Outside tests/unit, where tests of one file share what was compiled, a file stays on one worker
    when several run tests at once. These files come first, the longest at the head: the tests of
    tests/unit, which go anywhere, keep all workers busy to the end.
    """
    config.stash[selected_tests.COLLECTED] = [*items]
    _leave_out_costly(config, items)
    folders = {"relay": _TESTS / "relay", "gpu": _TESTS / "gpu"}
    reasons = {"relay": _why_no_relay(), "gpu": _why_no_gpu()}
    for item in items:
        if _is_grouped(item):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.timeout(_SLOW_TIMEOUT_S))
        for mark, folder in folders.items():
            if folder in item.path.parents:
                item.add_marker(mark)
            reason = reasons[mark]
            if reason is not None and item.get_closest_marker(mark) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
    costly = [item for item in items if selected_tests.is_costly(item)]
    seconds: dict[str, float] = defaultdict(float)
    for item, weight in zip(costly, selected_tests.seconds_of(costly), strict=True):
        seconds[item.path.stem] += weight
    items.sort(key=lambda item: _place(item, seconds[item.path.stem]))


def pytest_collection_finish() -> None:
    """Let the collector of cycles pass over what lives to the end, and look less often.

    Modules and thousands of tests are most of its work otherwise: a tenth of the processor time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _is_grouped(item: pytest.Item) -> bool:
    return _TESTS / "unit" not in item.path.parents


def _place(item: pytest.Item, costly_s: float) -> tuple[int, float, str]:
    """The place in the order of files; those of one place stay in their own order."""
    if not _is_grouped(item):
        return len(_LONGEST) + 1, 0.0, ""
    names = {item.path.stem, item.path.parent.name}
    longest = [place for place, name in enumerate(_LONGEST) if name in names]
    return min(longest, default=len(_LONGEST)), -costly_s, item.path.stem


@pytest.fixture(autouse=True, scope="session")
def no_store_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store of costs for what fixtures of modules measure: they begin before `own_store`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PATH_VARIABLE, str(tmp_path_factory.getbasetemp() / "costs.sqlite"))
        yield


@pytest.fixture(autouse=True)
def own_store(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """A store of costs for each test: none reads or writes the user's, or that of another test."""
    folder = tmp_path_factory.getbasetemp()
    monkeypatch.setenv(PATH_VARIABLE, str(folder / f"costs-{id(request.node):x}.sqlite"))


@pytest.fixture
def diamond() -> Instance:
    """The worked diamond on two devices; see `tests.instances`."""
    return make_diamond()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str, str], None]:
    """Compares texts with files of tests/golden; see `tests.golden_files`."""
    folder, is_updated = _TESTS / "golden", request.config.getoption("--update-golden")

    def check(name: str, text: str, made_from: str = "") -> None:
        check_golden(folder, name, text, made_from, is_updated)

    return check
