"""
A solver of your own
====================

A solver takes a problem (graph, cluster, costs) and gives a plan. One of fifty lines is written
here, registered for this process, run as the others are, and compared with them: every plan is
judged by one simulator, beside one lower bound. It takes a few seconds and needs no TVM.
"""

# %%
# A problem to try it on: a grid of tasks, each reading its neighbours above and to the left, on a
# CPU and two GPUs.

import heteroplace
from heteroplace import Task, TaskGraphBuilder
from heteroplace.costs.roofline import estimate_costs
from heteroplace.model.check import check_plan
from heteroplace.model.plan import Copy, Run
from heteroplace.model.units import format_ns
from heteroplace.report.tables import format_table
from heteroplace.simulate.simulator import simulate
from heteroplace.solve import Problem, SolveOptions, get_solver
from heteroplace.solve.problem import make_result
from heteroplace.solve.solvers import SOLVERS

SIDE = 8
builder = TaskGraphBuilder("grid")
builder.add_input("x", shape=(512, 1024), dtype="float32")
for row in range(SIDE):
    for column in range(SIDE):
        reads = [f"t{row - 1}.{column}"] if row else []
        reads += [f"t{row}.{column - 1}"] if column else []
        flops = 10**9 * (1 + (7 * row + 3 * column) % 5)
        task = Task(f"t{row}.{column}", "dense", flops=flops, weight_bytes=2**20)
        builder.add_task(task, reads or ["x"])
        builder.add_tensor(f"t{row}.{column}", shape=(512, 1024), dtype="float32", name=task.name)
graph = builder.finalize([f"t{SIDE - 1}.{SIDE - 1}"])
cluster = heteroplace.load_cluster("cpu-two-gpus")
problem = Problem(graph, cluster, estimate_costs(graph, cluster))

# %%
# The solver
# ----------
# Task by task, in order: on the device where it would end first, by a count of when devices are
# free and tensors arrive. A plan is an ordered list of steps; tasks, devices, memories and tensors
# are named by their positions. A tensor is copied once to a memory, however many tasks read it
# there, and what the network returns goes back to the host's memory.


class NearestSolver:
    """Each task, in order, where it would end first."""

    name = "nearest"

    def solve(self, problem, options):
        """Return a plan; the simulator says what it takes."""
        self.problem, self.steps = problem, []
        self.free_ns = [0] * len(problem.cluster.devices)
        # Where each tensor is, and since when; the first place is its home.
        self.since_ns = {tensor: {problem.cluster.host: 0} for tensor in problem.graph.inputs}
        for task in range(len(problem.graph.tasks)):
            ends = [(self.end_ns(task, device), device) for device in range(len(self.free_ns))]
            self.put(task, *min(ends))
        for tensor in problem.graph.outputs:
            self.bring(tensor, problem.cluster.host)
        plan = problem.native.plan(self.steps, self.name)
        return make_result(problem, plan, 0, self.name, 0.0)

    def arrival_ns(self, tensor, memory):
        """Return when a tensor is in a memory, if it is copied there now."""
        (home, since_ns), *_ = self.since_ns[tensor].items()
        cluster, graph = self.problem.cluster, self.problem.graph
        route = cluster.route(home, memory)
        copied_ns = since_ns + cluster.transfer_ns(route, graph.tensors[tensor].bytes)
        return self.since_ns[tensor].get(memory, copied_ns)

    def end_ns(self, task, device):
        """Return when a task would end on a device."""
        memory = self.problem.cluster.devices[device].memory
        reads = self.problem.graph.task_inputs[task]
        arrivals = [self.arrival_ns(tensor, memory) for tensor in reads]
        return max(self.free_ns[device], *arrivals) + self.problem.costs.run_ns(task, device)

    def bring(self, tensor, memory):
        """Copy a tensor to a memory unless it is there."""
        if memory not in self.since_ns[tensor]:
            home = next(iter(self.since_ns[tensor]))
            route = self.problem.cluster.route(home, memory)
            arrival_ns = self.arrival_ns(tensor, memory)
            self.since_ns[tensor][memory] = arrival_ns
            self.steps.append(Copy(tensor, home, memory, route))

    def put(self, task, end_ns, device):
        """Add a task to the plan, after the copies that it needs."""
        memory = self.problem.cluster.devices[device].memory
        for tensor in self.problem.graph.task_inputs[task]:
            self.bring(tensor, memory)
        self.steps.append(Run(task, device))
        self.free_ns[device] = end_ns
        for tensor in self.problem.graph.task_outputs[task]:
            self.since_ns[tensor] = {memory: end_ns}


# %%
# Registered, it has a name like any other in this process: ``solver="nearest"`` of the pass. The
# commands are other processes, and know it once it is a line of ``solve/solvers.py``.

SOLVERS["nearest"] = NearestSolver()
options = SolveOptions(iterations=300, threads=1)
results = {
    name: get_solver(name).solve(problem, options)
    for name in ("single", "nearest", "greedy", "heft", "search")
}

# %%
# Beside the others
# -----------------
# ``check_plan`` finds what breaks a rule: a tensor read where it is not, a memory too full, a step
# in the wrong order. The bound is the best that any of the solvers has proven.

bound_ns = max(result.bound_ns for result in results.values())
rows = []
for name, result in results.items():
    check_plan(graph, cluster, problem.costs, result.plan)
    time_ns = simulate(graph, cluster, problem.costs, result.plan).makespan_ns
    assert time_ns >= bound_ns
    rows.append((name, format_ns(time_ns), f"{time_ns / bound_ns:.2f}"))
print(format_table(("solver", "simulated", "over the bound"), rows))
