"""Values as golden text: print(x) is readable, parse(print(x)) == x. Messages quote it.

`heteroplace show` prints it; `tests/golden` holds examples of every form.
"""

from heteroplace.model.text.cluster_text import parse_cluster, print_cluster
from heteroplace.model.text.graph_text import parse_graph, print_graph
from heteroplace.model.text.plan_text import (
    parse_plan,
    print_plan,
    quote_step,
    step_line,
    step_name,
)

__all__ = [
    "parse_cluster",
    "parse_graph",
    "parse_plan",
    "print_cluster",
    "print_graph",
    "print_plan",
    "quote_step",
    "step_line",
    "step_name",
]
