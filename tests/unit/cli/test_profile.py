"""`heteroplace profile` as far as it comes without TVM."""

from __future__ import annotations

from pathlib import Path

from tests.programs import run_python
from tests.unit.test_import_without_tvm import HIDE_TVM

HIDE = HIDE_TVM.replace('"tvm"', "HIDDEN")
RUN = """
from heteroplace.cli.main import main
code = main(["profile", "model.onnx", "--cluster", "moirai-inter-server"])
print(code, "tvm" in sys.modules)
"""


def profile_without(package: str, folder: Path) -> str:
    """Exit code, whether TVM was loaded, and what stands on standard error."""
    (folder / "model.onnx").write_bytes(b"")
    start = f"import os\nos.chdir({str(folder)!r})\nHIDDEN = {package!r}\n"
    catch = "import io\nsys.stderr = io.StringIO()\n"
    return run_python(start + HIDE + catch + RUN + "print(sys.stderr.getvalue())", "-W", "error")


def test_without_tvm_it_says_how_to_get_it(tmp_path: Path) -> None:
    code, is_loaded, *words = profile_without("tvm", tmp_path).split()
    assert (code, is_loaded) == ("5", "False")
    assert "heteroplace setup-tvm" in " ".join(words)


def test_reading_the_arguments_needs_no_tvm() -> None:
    program = (
        "import sys\nfrom heteroplace.cli.main import make_parser\n"
        "print(make_parser().parse_args(['profile', 'm', '--cluster', 'c']).batch)\n"
        "print('tvm' in sys.modules)\n"
    )
    assert run_python(program).split("\n")[:2] == ["None", "False"]
