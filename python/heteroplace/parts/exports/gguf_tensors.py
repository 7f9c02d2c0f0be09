"""Names of a decoder's modules in PyTorch -> the blocks and tensors of GGUF files."""

from __future__ import annotations

import re
from typing import NamedTuple

_BLOCK = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)(?:\.(.*))?$")
_TENSORS = {
    "attn_norm": r"input_layernorm|ln_1|attention_norm",
    "attn_qkv": r".*\.(?:qkv_proj|c_attn|query_key_value|Wqkv|qkv)",
    "attn_q": r".*\.(?:q_proj|wq)",
    "attn_k": r".*\.(?:k_proj|wk)",
    "attn_v": r".*\.(?:v_proj|wv)",
    "attn_q_norm": r".*\.q_norm",
    "attn_k_norm": r".*\.k_norm",
    "attn_output": r"(?:self_)?(?:attn|attention)\.(?:o_proj|out_proj|c_proj|dense|wo)",
    "ffn_norm": r"post_attention_layernorm|ln_2|ffn_norm",
    "ffn_gate_inp": r"(?:block_sparse_moe|mlp)\.(?:gate|router)",
    "ffn_gate_exps": r".*experts(?:\.\d+)?\.(?:w1|gate_proj)",
    "ffn_down_exps": r".*experts(?:\.\d+)?\.(?:w2|down_proj)",
    "ffn_up_exps": r".*experts(?:\.\d+)?\.(?:w3|up_proj)",
    "ffn_gate": r"(?:mlp|feed_forward)\.(?:gate_proj|w1)",
    "ffn_up": r"(?:mlp|feed_forward)\.(?:up_proj|gate_up_proj|c_fc|fc1|dense_h_to_4h|w3)",
    "ffn_down": r"(?:mlp|feed_forward)\.(?:down_proj|c_proj|fc2|dense_4h_to_h|w2)",
}
"""Each tensor of a block, and the names of modules inside the block that hold it."""
_OF_MODEL = {
    "token_embd": r"(?:.*\.)?(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in)",
    "position_embd": r"(?:.*\.)?wpe",
    "output_norm": r"(?:.*\.)?(?:norm|ln_f|final_layernorm|final_layer_norm)",
    "output": r"(?:.*\.)?(?:lm_head|embed_out|output)",
}
INPUTS = ("token_embd", "position_embd")
"""Tensors that are read before the first block."""
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
"""Tensors of a block that hold the weights of its experts."""


class GGUFTensor(NamedTuple):
    """A tensor of a GGUF file."""

    block: int | None
    """Number of its block; None: it is outside of the blocks."""
    name: str
    """Such as "attn_q" or "output"; the file has "blk.0.attn_q.weight"."""

    def __str__(self) -> str:
        """Return the name in the file, without ".weight"."""
        return self.name if self.block is None else f"blk.{self.block}.{self.name}"


def gguf_tensor(module: str) -> GGUFTensor | None:
    """Return the tensor that holds the weights of a module; None: no name of a decoder fits.

    >>> gguf_tensor("model.layers.3.mlp.down_proj"), gguf_tensor("lm_head")
    (GGUFTensor(block=3, name='ffn_down'), GGUFTensor(block=None, name='output'))
    """
    match = _BLOCK.search(module)
    if match is None:
        name = _first_match(_OF_MODEL, module)
        return None if name is None else GGUFTensor(None, name)
    name = _first_match(_TENSORS, match[2] or "")
    return None if name is None else GGUFTensor(int(match[1]), name)


def _first_match(patterns: dict[str, str], name: str) -> str | None:
    return next((key for key, pattern in patterns.items() if re.fullmatch(pattern, name)), None)
