"""Records of the ops that move, select or fill elements and compute nothing."""

from __future__ import annotations

from heteroplace.model.op_traits.op_record import OpTraits

_OP = OpTraits()
_FREE = OpTraits(flops="none")
_MOVE = _FREE.of("", bounds="first", needs="same")
_VIEW = _MOVE.of("", kind="view", cost="view", parts="shape", cells="move")
_LIKE_VIEW = _VIEW.of(
    "", support="move", positive="first", nonnegative="all", zero="any", linear_operands=1
)
_GATHER = _MOVE.of("", cost="launch", reads_places=True)
_FILL = _FREE.of("", cost="launch")
_BLOCKS = OpTraits(bounds="first", parts="layout", divisors=("block_size",))
_SORT = OpTraits(parts="axis", cells="axis", is_safe_on_cuda=False)

RECORDS = (
    # The same elements in the same order.
    _LIKE_VIEW.of("expand_dims squeeze"),
    _LIKE_VIEW.of("reshape", cut="reshape"),
    _VIEW.of("nn.batch_flatten", kind="flatten", cut="reshape"),
    _MOVE.of("copy", cost="view", cells="move", support="move"),
    _FREE.of("contrib_reverse_reshape nn.dropout", cost="view"),
    _FREE.of("annotation.stop_fusion", cost="view", parts="shape"),
    _FREE.of("dyn.reshape"),
    _MOVE.of("reshape_like", flops=None, linear_operands=1),
    _MOVE.of("on_device device_copy", flops=None),
    # In another order, or several times.
    _LIKE_VIEW.of("transpose", kind="permute", cost="compute", zero=None),
    _VIEW.of("layout_transform", kind="layout", cost="compute", bounds="relayout"),
    _LIKE_VIEW.of("broadcast_to", kind=None, cost="compute", cut="broadcast", linear_operands=0),
    _MOVE.of("broadcast_to_like", cost="compute", flops=None),
    _MOVE.of("repeat reverse", cost="compute", parts="axis", cells="move"),
    _MOVE.of("tile", cost="compute", cells="move", zero="any"),
    _MOVE.of("nn.pad", cost="compute", bounds="all", parts="shape", cells="pad"),
    _BLOCKS.of("nn.depth_to_space nn.space_to_depth"),
    # Joined, and cut.
    _MOVE.of("concatenate stack", cost="launch", bounds="all", parts="axis", cells="move"),
    _MOVE.of("split", cost="launch", parts="axis", cells="move", nonnegative="fields"),
    _VIEW.of(
        "strided_slice",
        kind=None,
        cost="launch",
        support="move",
        nonnegative="all",
        cut="slice",
        divisors=("strides",),
    ),
    # Read or written at places that other operands decide.
    _GATHER.of(
        "take",
        parts="axis",
        cells="take",
        support="take",
        nonnegative="first",
        indices="axis",
        reads=(1, 3),
    ),
    _GATHER.of("gather", indices="axis"),
    _GATHER.of("gather_nd", indices="first_axes"),
    _OP.of("reverse_sequence", bounds="first", indices="lengths", reads_places=True),
    _OP.of("adv_index", reads_places=True),
    _OP.of("image.grid_sample", reads=(4, 40), reads_places=True),
    _OP.of(
        "scatter_elements",
        kind="update",
        bounds="scatter_elements",
        support="scatter",
        indices="axis",
    ),
    _OP.of("scatter_nd", kind="update", bounds="scatter_nd", indices="first_axes"),
    _OP.of(
        "one_hot",
        cost="compute",
        parts="shape",
        support="one_hot",
        indices="one_hot",
        reads=(10,),
    ),
    _OP.of("vision.roi_align", indices="roi_align"),
    # Filled.
    _FILL.of("arange ones shape_of"),
    _FILL.of("zeros", zero="always"),
    _FILL.of("full", zero="fill"),
    _FILL.of("ones_like", flops=None),
    _FILL.of("zeros_like", flops=None, zero="always"),
    _OP.of("full_like", zero="fill"),
    # Sorted.
    _SORT.of("sort", bounds="first", needs="same"),
    _SORT.of("argsort", bounds="index"),
    _SORT.of("topk", needs="same", nonnegative="fields"),
    _OP.of(
        "unique vision.non_max_suppression vision.all_class_non_max_suppression vision.proposal",
        is_safe_on_cuda=False,
    ),
)
