"""Records of the ops of graphs that are written without Relay: of sharded graphs, for example."""

from __future__ import annotations

from heteroplace.model.op_traits.op_record import OpTraits

_GRAPH_OP = OpTraits(is_relay=False, cost="compute")

RECORDS = (
    _GRAPH_OP.of(
        "matmul matmul_dw matmul_dx dense dense_grad relu relu_grad gelu nn.gelu softmax "
        "layer_norm loss loss_grad sgd add_up"
    ),
    _GRAPH_OP.of("identity", cost="view"),
    _GRAPH_OP.of("slice", cost="launch"),
)
