"""What would a GPU less cost? Two ready-made clusters, one graph; no TVM, nothing is run."""

import heteroplace
from heteroplace.costs.roofline import estimate_costs
from heteroplace.solve import Problem, SolveOptions, get_solver

builder = heteroplace.TaskGraphBuilder("rows")
builder.add_input("x", shape=(256, 1024), dtype="float32")
for row in range(6):
    task = heteroplace.Task(f"row{row}", "dense", flops=10**10, weight_bytes=2**22)
    builder.add_task(task, ["x"])
    builder.add_tensor(task.name, shape=(256, 1024), dtype="float32", name=task.name)
graph = builder.finalize([f"row{row}" for row in range(6)])
for name in ("cpu-one-gpu", "cpu-two-gpus"):
    cluster = heteroplace.load_cluster(name)
    problem = Problem(graph, cluster, estimate_costs(graph, cluster))
    result = get_solver("search").solve(problem, SolveOptions(iterations=100, threads=1))
    print(f"{name}: {result.objective_ns / 1e6:.2f} ms, bound {result.bound_ns / 1e6:.2f} ms")
