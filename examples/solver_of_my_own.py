"""Place by a solver of one's own: the best plan of three published schedulers."""

import heteroplace
from heteroplace.demo.networks import small_cnn
from heteroplace.solve import SOLVERS


class BestOfThree:
    name = "best-of-three"

    def solve(self, problem, options):
        results = [SOLVERS[name].solve(problem, options) for name in ("heft", "peft", "single")]
        return min(results, key=lambda result: result.objective_ns)


SOLVERS["best-of-three"] = BestOfThree()
mod, params, _ = small_cnn()
cluster = heteroplace.local_cluster(has_gpus=False)
executable = heteroplace.build(mod, cluster, params, solver="best-of-three", costs="estimate")
print(executable.summary(max_rows=3))
