"""All stages from a Relay module to an executable, in an order that is written once.

    module, cluster, options -> `place` (the stages of `place_stages()`) -> plan
    plan                     -> `annotate`      -> annotated module, which carries plan and kernels
    annotated module         -> `build_module`  (`build_stages()`) -> Executable
    module, cluster, options -> `compile_network` -> the same Executable, without annotations

README.md states the order and its reasons. The pass, the command line, the benchmarks and the demo
call these functions and repeat none of them.
"""

from heteroplace.pipeline.build_stages import (
    annotate,
    build,
    build_module,
)
from heteroplace.pipeline.core_stages import CostedNetwork, compile, cost, prepare, solve
from heteroplace.pipeline.place_stages import (
    annotate_network,
    compile_network,
    place,
    place_network,
)

__all__ = [
    "CostedNetwork",
    "annotate",
    "annotate_network",
    "build",
    "build_module",
    "compile",
    "compile_network",
    "cost",
    "place",
    "place_network",
    "prepare",
    "solve",
]
