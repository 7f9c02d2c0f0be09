"""Two outputs -> how they differ, figures apart.

Figures are numbers and their units, digests, what is said of the machine, and what is decided by
them: the devices that something is on, the rows of a table of tasks or devices, the words of a
headline. All else is to be the same, line by line.
"""

from __future__ import annotations

import difflib
import re

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What a program ends with is no figure: its digit becomes a word.
_EXIT_CODE = re.compile(r"exit code (\d)\b")
_DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_REPLACED = (
    # Where: folders of a run, hosts, processors.
    (re.compile(r"(?<![\w.])/[\w./+-]+/python[\d.]*(?= )"), "python"),
    (re.compile(r"(?:FOLDER|(?<![\w.])~?/[\w.~+-]+(?:/[\w.~+-]+)*)"), "PATH"),
    (re.compile(r"PATH/([\w.-]+)"), r"PATH"),
    (re.compile(r"-mcpu=[\w-]+"), "-mcpu=CPU"),
    (re.compile(r"host '[\w.-]+'"), "host HOST"),
    (re.compile(r"(?:cpu\.all\.|cpu\.)?[\w-]+\.\d+(?=[: ])(?=.*cores \()"), "DEVICE"),
    (re.compile(r"\b[0-9a-f]{32,}\b"), "DIGEST"),
    # What is where: names of this machine's devices, alone or joined.
    (re.compile(r"\b(?:cpu\.(?:all(?:\.[\w-]+\.\d+)?|\d+))(?:\+cpu\.(?:all|\d+))*"), "DEVICE"),
    (re.compile(r"\bcore\d+\b"), "QUEUE"),
    # Numbers, with a unit or without, and lists of them.
    (re.compile(r"[-+]?\d[\d,_]*(?:\.\d+)*(?:e[-+]?\d+)?(?:T[\d:+]+)?"), "#"),
    (re.compile(r"# ?(?:ns|us|ms|s|[KMGT]i?B(?:/s)?|%|x|GHz|Gbit/s)(?!\w)"), "#"),
    (re.compile(r"(?:\+-#|\+- #)"), ""),
    (re.compile(r"\s+"), " "),
)
# Rows of a table that a plan or a measurement decides: after such a line, while there are columns.
_TABLE = re.compile(r"^(?:task\s+op\s|device\s+tasks\s|choice\s+devices\s)")
_TABLE_ROW = re.compile(r"\S {2,}\S.* {2,}\S|^\.\.\. ")
# Lines whose words are chosen by figures, or by the machine: that there is one is the same.
_DECIDED = (
    (re.compile(r"^(?:predicted # |one device is best)"), "(headline)"),
    (re.compile(r"^fingerprint:"), "(fingerprint)"),
    (re.compile(r"^machine:"), "(machine)"),
    (re.compile(r"^(?:host HOST: )?[^:]*: # socket"), "(processor)"),
    (re.compile(r"^moved by hand:"), "(moved)"),
    (re.compile(r"^%#"), "(line of Relay)"),
)
# Lines that are there or not by figures, or by how many devices a machine has; progress; cuts.
_OPTIONAL = (
    re.compile(r"^(?:warning|note):|^best single device"),
    re.compile(r"^device \S+ \S+ memory"),
    re.compile(r"^(?:cores # and #|core to core|of the sum of their speeds)"),
    re.compile(r"^\.\.\.|^[\w-]+: .* \.\.\.$"),
)
_CUT = re.compile(r"^\.\.\.$", re.MULTILINE)
_MAX_WIDTH = 60


def form(row: str) -> str:
    """Return a line without its figures.

    >>> form("first run 11.9 ms, 3 KiB on cpu.0+cpu.all")
    'first run #, # on DEVICE'
    """
    row = _ESCAPE.sub("", row).strip()
    row = _EXIT_CODE.sub(lambda found: f"exit code {_DIGITS[int(found[1])]}", row)
    for pattern, word in _REPLACED:
        row = pattern.sub(word, row)
    for decided, word in _DECIDED:
        if decided.match(row):
            return word
    return row.strip()


def forms(text: str) -> list[str]:
    """Return the lines of an output that are to be the same in every run, without figures.

    Lines that figures may leave out are left out, and rows of tables that they decide; long lines
    are cut, as the pages of the site cut them.
    """
    kept = []
    in_table = False
    for row in text.splitlines():
        in_table = in_table and bool(_TABLE_ROW.search(row))
        shape = form(row)
        if _TABLE.match(row):
            in_table = True
            kept.append(" ".join(row.split())[:_MAX_WIDTH])
        elif shape and not in_table and not any(one.match(shape) for one in _OPTIONAL):
            kept.append(shape[:_MAX_WIDTH].rstrip())
    return kept


def differences(shown: str, printed: str, *, has_cuts: bool = False) -> list[str]:
    """Say which lines of what is shown were not printed, and which were printed beyond them.

    What stands before the first line that is shown is no difference: texts may show the end.

    Parameters
    ----------
    shown
        The output that a text shows; "" if it shows none, which nothing differs from.
    printed
        What the command printed.
    has_cuts
        Whether a line `...` of what is shown stands for any lines.
    """
    expected, got = forms(shown), forms(printed)
    if not expected:
        return []
    if has_cuts and _CUT.search(shown):
        return _missing(shown, got)
    if expected[0] in got:
        got = got[got.index(expected[0]) :]
    rows = difflib.ndiff(expected, got)
    return [row for row in rows if row.startswith(("- ", "+ "))]


def _missing(shown: str, got: list[str]) -> list[str]:
    """The lines between the cuts of what is shown that do not follow each other in what is got."""
    at = 0
    for part in _CUT.split(shown):
        rows = forms(part)
        starts = range(at, len(got) - len(rows) + 1)
        found = next((start for start in starts if got[start : start + len(rows)] == rows), None)
        if found is None:
            return [f"- {row}" for row in rows]
        at = found + len(rows)
    return []
