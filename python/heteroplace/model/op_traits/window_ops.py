"""Records of products of matrices, convolutions, pools, and ops that resize maps."""

from __future__ import annotations

from heteroplace.model.op_traits.op_record import WRITE_ROWS_OP, OpTraits

_OP = OpTraits()
_PRODUCT = OpTraits(
    kind="product", cost="compute", flops="product", parts="shape", cells="product", empty=0
)
_LAYOUT = OpTraits(parts="layout")
_CONVOLUTION = _LAYOUT.of("", labels="convolution", divisors=("strides", "groups"))
_MAP = _LAYOUT.of("", has_single_channels=True)
_POOL = _MAP.of("", kind="pool", cells="pool")
_MAX_POOL = _POOL.of("", fold="max")
_ADAPTIVE_MAX_POOL = _MAP.of("", fold="max")
_STRIDES = ("strides",)

RECORDS = (
    _PRODUCT.of("nn.dense", labels="dense"),
    _PRODUCT.of("nn.matmul", labels="matmul"),
    _PRODUCT.of("nn.batch_matmul", labels="batch_matmul"),
    _OP.of("nn.contrib_dense_pack", cost="compute", flops="product"),
    _OP.of(
        "heteroplace_batch_matmul heteroplace_bfloat16_matmul heteroplace_matmul "
        "heteroplace_packed_matmul heteroplace_int8_matmul",
        flops="product",
    ),
    _OP.of(
        "heteroplace_recurrent heteroplace_recurrent_bytes", kind="recurrent", flops="recurrent"
    ),
    _OP.of(WRITE_ROWS_OP, kind="cache", flops="none", indices="rows"),
    _OP.of("heteroplace_cached_attention", kind="cache", flops="attention", indices="past"),
    _CONVOLUTION.of("nn.conv1d nn.conv2d nn.conv3d", cost="compute", cells="convolution"),
    _CONVOLUTION.of("nn.conv2d_transpose", cost="compute"),
    _CONVOLUTION.of("nn.conv1d_transpose nn.conv3d_transpose"),
    _LAYOUT.of("nn.contrib_conv2d_NCHWc", cost="compute"),
    _LAYOUT.of("nn.contrib_depthwise_conv2d_NCHWc nn.conv2d_backward_weight"),
    _MAX_POOL.of("nn.max_pool2d", cost="compute", passes_scale=True, divisors=_STRIDES),
    _MAX_POOL.of("nn.max_pool1d nn.max_pool3d", divisors=_STRIDES),
    _MAX_POOL.of("nn.global_max_pool2d", cost="compute"),
    _ADAPTIVE_MAX_POOL.of("nn.adaptive_max_pool2d", cost="compute"),
    _ADAPTIVE_MAX_POOL.of("nn.adaptive_max_pool1d nn.adaptive_max_pool3d"),
    _POOL.of("nn.avg_pool2d", cost="compute", passes_scale=True, divisors=_STRIDES),
    _POOL.of("nn.avg_pool1d nn.avg_pool3d", divisors=_STRIDES),
    _POOL.of("nn.global_avg_pool2d", cost="compute"),
    _MAP.of("nn.adaptive_avg_pool2d", cost="compute"),
    _MAP.of("nn.adaptive_avg_pool1d nn.adaptive_avg_pool3d"),
    _MAP.of("nn.max_pool2d_grad nn.avg_pool2d_grad"),
    _MAP.of("image.resize1d", reads=(2,)),
    _MAP.of("image.resize2d nn.upsampling", reads=(4,)),
    _MAP.of("image.resize3d nn.upsampling3d", reads=(8,)),
)
