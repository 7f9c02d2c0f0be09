"""A problem -> the plan with every task on the device that runs all of them fastest."""

from heteroplace.native.list import evaluate_order
from heteroplace.solve.list.scheduler_solver import ListSolver
from heteroplace.solve.list.single import fastest_devices


class FastestDeviceSolver(ListSolver):
    name = "fastest-device"

    def native_plan(self, problem, deadline=None):
        num_tasks = len(problem.graph.tasks)
        fastest, *_ = fastest_devices(problem)
        return evaluate_order(problem.native, [fastest] * num_tasks, range(num_tasks))
