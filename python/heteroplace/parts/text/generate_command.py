"""`heteroplace generate`: a compiled decoder and a prompt -> text, printed as it is written."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import heteroplace
from heteroplace.cli.shared import Parsers, add_command, add_json, plural, show
from heteroplace.command_parser import START
from heteroplace.errors import HeteroPlaceError
from heteroplace.options import Argument, add_arguments, count, from_arguments
from heteroplace.parts.text.decoder_session import SessionDecoder
from heteroplace.parts.text.generator import generate
from heteroplace.parts.text.sampling import TokenSampling
from heteroplace.parts.text.text_tokenizer import TextTokenizer

_STANDARD_INPUT = "-"


def add_commands(commands: Parsers) -> None:
    """Add the subcommand `generate`."""
    parser = add_command(
        commands,
        "generate",
        "write text with a compiled decoder",
        run,
        description="Write text with a compiled decoder that keeps its cache as state and holds "
        "its tokenizer: heteroplace compile model.onnx --state auto --tokenizer tokenizer.json.",
        group=START,
    )
    parser.add_argument("model", metavar="FILE.so", help="a compiled file")
    parser.add_argument(
        "--prompt", required=True, metavar="TEXT", help="text to go on from; -: standard input"
    )
    parser.add_argument(
        "--chat", action="store_true", help="the prompt is a user's message, to be answered"
    )
    parser.add_argument(
        "--max-new-tokens",
        metavar="N",
        type=Argument(count),
        default=128,
        help="tokens to write at most; default: 128",
    )
    add_arguments(parser, TokenSampling)
    parser.add_argument(
        "--trusted-key",
        metavar="KEY.pem",
        action="append",
        help="use only a file that this public key has signed; may be repeated",
    )
    add_json(parser)


@dataclass
class _Timed:
    """What is written after a prompt, and when."""

    text: str = ""
    prompt_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    first_token_s: float = 0.0
    """From the beginning of the prompt to the first token."""
    tokens_per_second: float = 0.0
    """Of the tokens after the first one."""

    def watch(self, ids: Iterator[int]) -> Iterator[int]:
        """Yield the tokens, and note when they come."""
        began_s = time.perf_counter()
        for token in ids:
            passed_s = time.perf_counter() - began_s
            if not self.tokens:
                self.first_token_s = passed_s
            self.tokens.append(token)
            if len(self.tokens) > 1:
                after_first_s = passed_s - self.first_token_s
                self.tokens_per_second = (len(self.tokens) - 1) / after_first_s
            yield token


def run(arguments: argparse.Namespace) -> None:
    """Read the prompt, and print what follows.

    Raises
    ------
    HeteroPlaceError
        The file cannot be loaded, has no state or no tokenizer, or is no decoder; an option is
        wrong; or the cache is full.
    """
    model: str = arguments.model
    sampling = from_arguments(TokenSampling, arguments)
    prompt = sys.stdin.read() if arguments.prompt == _STANDARD_INPUT else arguments.prompt
    with heteroplace.load(model, trusted_keys=arguments.trusted_key) as executor:
        tokenizer = TextTokenizer(executor.tokenizer, model)
        ids = tokenizer.encode_chat(prompt) if arguments.chat else tokenizer.encode(prompt)
        ends = (tokenizer.chat_end(),) if arguments.chat else ()
        new_ids = generate(
            SessionDecoder(executor.session()),
            ids,
            max_new_tokens=arguments.max_new_tokens,
            sampling=sampling,
            stop_ids=(*tokenizer.stop_ids, *ends),
        )
        timed = _Timed(prompt_tokens=len(ids))
        try:
            for text in tokenizer.texts(timed.watch(new_ids)):
                timed.text += text
                if not arguments.json:
                    print(text, end="", flush=True)
        except HeteroPlaceError:
            if timed.text and not arguments.json:
                print()  # the error begins on a line of its own
            raise
    if arguments.json:
        show(arguments, lambda: asdict(timed), str)
        return
    print()
    if not arguments.quiet:
        print(
            f"{plural(timed.prompt_tokens, 'token')} of the prompt, the first new one after "
            f"{timed.first_token_s:.3f} s, then {timed.tokens_per_second:.1f} tokens per second",
            file=sys.stderr,
        )
