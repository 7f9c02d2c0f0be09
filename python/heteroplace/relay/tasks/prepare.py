"""Bring a Relay module to the form in which it is cut into tasks: optimised, target-neutral.

The passes are those that `relay.build` itself runs before it plans devices, read from TVM by
`relay.backend.GetPassPrefixSeq`, for a heterogeneous module: without AlterOpLayout and whatever
else needs to know the target. Those run later, for each target on its own part of the network
(`heteroplace.lower.segments`). Before each FoldConstant goes our own folding by numpy, since
TVM's compiles every constant expression by LLVM.
"""

from __future__ import annotations

import tvm
from tvm import relay

from heteroplace.relay.tasks.computed_outputs import with_computed_outputs
from heteroplace.relay.tasks.corner_scatters import CornerScatters
from heteroplace.relay.tasks.empties import WithoutEmpties
from heteroplace.relay.tasks.float_order import GUARDED_PASSES, in_float_order
from heteroplace.relay.tasks.fold import with_numpy_folding
from heteroplace.relay.tasks.folded_steps import FoldedSteps
from heteroplace.relay.tasks.integer_products import IntegerProducts
from heteroplace.relay.tasks.kept_casts import KeptCasts
from heteroplace.relay.tasks.kept_forms import DoublesAsProducts, KeptForms
from heteroplace.relay.tasks.narrow_extents import NarrowExtents
from heteroplace.relay.tasks.own_places import OwnPlacesApart
from heteroplace.relay.tasks.shared_places import SharedPlacesApart
from heteroplace.relay.tasks.split_repeated import SplitRepeated

_IS_HOMOGENEOUS = False
_IS_VM = False


def prefix_passes(is_homogeneous: bool) -> list[tvm.ir.transform.Pass]:
    """Return the passes that `relay.build` runs before device planning, and ours among them.

    Without ToBasicBlockNormalForm: it changes only control flow, which cannot be cut into tasks
    anyway, and loses the spans that name the layers of the imported model.
    """
    sequence = tvm.get_global_func("relay.backend.GetPassPrefixSeq")(is_homogeneous, _IS_VM)
    passes = [step for step in sequence.passes if step.info.name != "ToBasicBlockNormalForm"]
    own_passes: list[tvm.transform.Pass] = []
    for step in with_numpy_folding(passes):
        if step.info.name == "SimplifyExpr":
            own_passes.append(DoublesAsProducts())
        own_passes.append(in_float_order(step) if step.info.name in GUARDED_PASSES else step)
    return own_passes


def prepare(mod: tvm.IRModule) -> tvm.IRModule:
    """Optimise `mod` without regard to any target; the opt level is that of the PassContext.

    Model parameters must be bound already (`relay.build_module.bind_params_by_name`), or nothing
    can be folded.
    """
    sequence = tvm.transform.Sequential(
        [
            relay.transform.InferType(),
            NarrowExtents(),
            WithoutEmpties(),
            CornerScatters(),
            IntegerProducts(),
            FoldedSteps(),
            KeptCasts(),
            KeptForms(),
            *prefix_passes(_IS_HOMOGENEOUS),
            relay.transform.InferType(),
        ]
    )
    return with_computed_outputs(sequence(mod))


def fuse(mod: tvm.IRModule) -> tvm.IRModule:
    """Group the ops of `mod` by TVM's own FuseOps: each call of `main` is one fused function.

    A tensor that is read at places which it decides itself is made by a function of its own, and
    so are places that come from look-ups and are read more than once.
    A group whose kernel would repeat too much work is split.
    """
    sequence = tvm.transform.Sequential(
        [
            OwnPlacesApart(),
            relay.transform.InferType(),
            SharedPlacesApart(),
            relay.transform.InferType(),
            relay.transform.FuseOps(),
            SplitRepeated(),
            relay.transform.InferType(),
        ]
    )
    return sequence(mod)
