"""Runs mutated cases one after the other, so that a crash or a hang ends this process alone.

`python -m tests.fuzz.child KIND SEED FIRST LAST` writes one JSON line for each case: its number
when it begins, then its outcome. `run_cases` starts it, and again behind a case that killed it.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from heteroplace.errors import HeteroPlaceError
from tests.programs import environment

TIME_LIMIT_S = 120
"""Of one case, wall clock: it takes milliseconds, or a limit of its own ends it after 20 s."""
REFUSED = "refused"


def run_cases(kind: str, seed: str, first: int, last: int) -> tuple[Counter[str], list[str]]:
    """Run the cases from `first` to before `last` of `tests.fuzz.KIND`.

    Returns
    -------
    How often there was each outcome, and what went wrong, one text for each such case.
    """
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    while first < last:
        command = [sys.executable, "-m", "tests.fuzz.child", kind, seed, str(first), str(last)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment()
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        for line in lines:
            if "outcome" in line:
                outcomes[line["outcome"]] += 1
            if "fault" in line:
                faults.append(f"case {line['case']}: {line['fault']}")
        if done.returncode == 0:
            break
        assert lines, f"{kind}: no case began: {done.stderr}"
        died = lines[-1]["case"]
        first = died + 1
        after_death = getattr(importlib.import_module(f"tests.fuzz.{kind}"), "after_death", None)
        if after_death is not None:
            outcomes[after_death(seed, died)] += 1
        else:
            faults.append(f"case {died}: ended with {done.returncode}: {done.stderr[:3000]}")
    return outcomes, faults


def main(arguments: list[str]) -> None:
    """Run the cases; ends with an error code only if a case kills the process."""
    kind, seed, first, last = arguments
    faulthandler.enable()
    # Ctrl-C of the tests' own terminal ends this process without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run_case = importlib.import_module(f"tests.fuzz.{kind}").run_case
    with tempfile.TemporaryDirectory() as folder:
        for number in range(int(first), int(last)):
            _say(case=number)
            faulthandler.dump_traceback_later(TIME_LIMIT_S, exit=True)
            try:
                _say(case=number, outcome=run_case(seed, number, Path(folder)))
            except HeteroPlaceError:
                _say(case=number, outcome=REFUSED)
            except Exception:  # What a case may not raise: told with its number, the others go on.
                _say(case=number, fault=traceback.format_exc()[-3000:])
            faulthandler.cancel_dump_traceback_later()


def _say(**line: object) -> None:
    print(json.dumps(line), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
