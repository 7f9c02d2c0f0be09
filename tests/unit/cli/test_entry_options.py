"""Wrong entries and calls on a command line are refused before a model is read."""

from __future__ import annotations

import pytest

from heteroplace.cli.main import main

BOTH = ["--entry", "token:n=1", "--entry", "prompt:n=16"]


@pytest.mark.parametrize("command", ["compile", "place"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*BOTH, "--entry", "token:n=2"], "'token' is there twice"),
        (["--workload", "token=1"], "--workload says how often entries are called"),
        (
            [*BOTH, "--workload", "token=1", "--workload", "promt=1"],
            "there is no entry 'promt'; did you mean \"prompt\"?",
        ),
        ([*BOTH, "--workload", "token=1"], "add --workload prompt=CALLS"),
        (
            ["--entry", "token:n=1,m=2", "--workload", "token=9 tokens"],
            "--workload token: '9 tokens' needs an entry with one size",
        ),
        ([*BOTH, "--workload", "token=1", "--workload", "token=2"], "'token' is given twice"),
    ],
)
def test_wrong_entries_are_refused(
    command: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "no-such-model.onnx", *words]) == 4
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--workload", "token"],
            "expected NAME=CALLS, such as 'token=128' or 'prompt=512 tokens'",
        ),
        (["--workload", "token=0"], "expected NAME=CALLS"),
        (["--entry", "token"], "expected NAME:SIZE=N"),
    ],
)
def test_wrong_forms_are_wrong_usage(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["place", "model.onnx", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_entries_are_for_models_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["place", "--graph", "graph.json", *BOTH, "--more-memory", "ram=1GiB"]) == 4
    assert "--entry, --more-memory: for ONNX models only" in capsys.readouterr().err
