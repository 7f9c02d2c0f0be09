"""What a compiled file says of its plan -> text: headline, devices, memories, tasks, reasons."""

from __future__ import annotations

from heteroplace.files.manifest import Manifest
from heteroplace.model.routed.route_profile import Profile
from heteroplace.registry import load_plugin
from heteroplace.report.headline import solution_headline
from heteroplace.report.layer_precisions import precision_line
from heteroplace.report.notes import notes_text
from heteroplace.report.tables import cost_sources_line, device_table, memory_text, placement_table
from heteroplace.report.weight_report import weights_text


def summary_text(manifest: Manifest, max_rows: int = 40, profile: Profile | None = None) -> str:
    """Return the text of `Executable.summary`, which has the parameters and errors."""
    solution = manifest.solution
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    timeline = solution.timeline
    opening = (solution_headline(solution), precision_line(solution), notes_text(solution))
    tables = [
        "\n".join(filter(None, opening)),
        device_table(graph, cluster, plan, timeline),
        memory_text(cluster, manifest.memory),
        placement_table(graph, cluster, plan, timeline, max_rows),
        cost_sources_line(solution.costs),
    ]
    weights = weights_text(graph, cluster, plan)
    if weights:
        tables.insert(3, weights)
    if graph.routers:
        text = load_plugin("routers", "plan-text")
        tables.append(text(solution, profile, manifest.model_digest, max_rows))
    if manifest.lengths is not None:
        tables.append(f"takes {manifest.lengths.text}")
    if manifest.verification is not None:
        tables.append(manifest.verification.text)
    return "\n\n".join(tables)
