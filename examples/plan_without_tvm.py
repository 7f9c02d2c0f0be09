"""Plan a task graph on a machine that is not here; no TVM, nothing is run."""

import heteroplace
from heteroplace.costs.roofline import estimate_costs
from heteroplace.report.tables import placement_table
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import Problem, SolveOptions, solve_network

builder = heteroplace.TaskGraphBuilder("fork")
source = builder.add_input("x", shape=(64, 1024), dtype="float32")
for name in ("a", "b", "c"):
    builder.add_task(heteroplace.Task(name, "dense", flops=4 * 10**9), [source])
    builder.add_tensor(name, shape=(64, 1024), dtype="float32", name=name)
builder.add_task(heteroplace.Task("sum", "add", flops=10**6), ["a", "b", "c"])
graph = builder.finalize([builder.add_tensor("sum", shape=(64, 1024), dtype="float32")])
cluster = heteroplace.load_cluster("cpu-two-gpus")
costs = estimate_costs(graph, cluster)
found = solve_network(Problem(graph, cluster, costs), SolveOptions(threads=1), solver="cpsat")
print(placement_table(graph, cluster, found.plan, simulate(graph, cluster, costs, found.plan)))
found.save("fork.json")  # which `heteroplace report`, `explain`, `simulate` and `diff` read
