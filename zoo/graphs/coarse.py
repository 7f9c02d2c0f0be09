"""Moirai's transformers after coarsening by what a backend fuses (section III-D, table IV).

The paper's rules are for convolutions; those for its transformers are not printed. Here a product
takes in the bias that is added to it, and the activation behind it, which is what the epilogues of
matrix libraries do; the paper's operator counts of GPT-3 come out within 0.5 %. A fused kernel
takes as long as its members less the launches that are saved, and its inner tensors vanish.
"""

from __future__ import annotations

from dataclasses import replace

from heteroplace.coarsen.coarse import Coarsening, coarsen
from heteroplace.coarsen.fusion_rules import FusionRules, fuse_by_rules
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.solve.problem import Problem
from zoo.graphs.clusters import LAUNCH_NS

BACKEND_RULES = FusionRules((("dense", "add"), ("dense", "gelu")))


def coarse_problem(problem: Problem, rules: FusionRules = BACKEND_RULES) -> Problem:
    """Return the problem with fused tasks; the cluster stays as it is."""
    coarse = coarsen(problem.graph, fuse_by_rules(problem.graph, rules), keeps_inner=False)
    return Problem(coarse.graph, problem.cluster, _fused_costs(problem, coarse))


def _fused_costs(problem: Problem, coarse: Coarsening) -> CostTable:
    sums = coarse.project_costs(problem.costs, problem.cluster)

    def cost(group: int, device: int) -> Cost:
        whole = sums.cost(group, device)
        saved_ns = (len(coarse.members[group]) - 1) * LAUNCH_NS
        if whole.ns is None:
            return whole
        return replace(whole, ns=max(0, whole.ns - saved_ns), reason="members less launches")

    return build_table(coarse.graph, problem.cluster, cost)
