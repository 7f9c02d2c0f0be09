"""The end of a run names the tests that it left out, in one process and in several."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent

TESTS = """
    import pytest

    def test_quick(): pass

    @pytest.mark.slow
    @pytest.mark.parametrize("n", range(2))
    def test_slow(n): pass

    @pytest.mark.gpu
    @pytest.mark.slow
    def test_gpu(): pass
"""


@pytest.fixture(autouse=True)
def runs_see_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of other folders import `tests.left_out` of this one."""
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize("options", [(), ("--numprocesses", "2")], ids=["one", "two"])
def test_a_run_ends_with_what_it_left_out(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    costly\n    slow\n    gpu\n")
    pytester.makepyfile(textwrap.dedent(TESTS))
    run = pytester.runpytest_subprocess(
        "-q", "-p", "tests.left_out", "-m", "not slow and not gpu", *options
    )
    run.assert_outcomes(passed=1)
    lines = [line for line in run.outlines if line.startswith("left out:")]
    assert lines == [
        "left out: 1 tests that need an NVIDIA GPU: make gpu",
        "left out: 2 tests that are slow: make test-all",
    ]


CONFTEST = """
    import pytest
    from tests.selected_tests import KIND

    def pytest_collection_modifyitems(config, items):
        for item, kind in zip(items[:3], ("reached", "unreached", "reached")):
            item.stash[KIND] = kind
        config.hook.pytest_deselected(items=items[:3])
        del items[:3]
"""


def test_a_run_counts_costly_tests_by_whether_the_change_reaches_them(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    costly\n    slow\n    gpu\n")
    pytester.makeconftest(textwrap.dedent(CONFTEST))
    pytester.makepyfile("\n".join(f"def test_{n}(): pass" for n in range(4)))
    run = pytester.runpytest_subprocess("-q", "-p", "tests.left_out")
    lines = [line for line in run.outlines if line.startswith("left out:")]
    assert lines == [
        "left out: 1 tests that take seconds and do not reach the change: make test-all",
        "left out: 2 tests that reach the change, but take more seconds than a run has for them: "
        "make test-all",
    ]


def test_a_run_of_everything_leaves_nothing_out(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    costly\n    slow\n    gpu\n")
    pytester.makepyfile(textwrap.dedent(TESTS))
    run = pytester.runpytest_subprocess("-q", "-p", "tests.left_out")
    run.assert_outcomes(passed=4)
    assert "left out" not in run.stdout.str()
