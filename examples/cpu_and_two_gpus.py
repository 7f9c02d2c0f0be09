"""Place a network over a CPU and two GPUs that are not here, by predicted costs."""

from collections import Counter

import heteroplace
from heteroplace.demo.networks import small_cnn

mod, params, _ = small_cnn()
for cluster in ("cpu-one-gpu", "cpu-two-gpus"):
    solution = heteroplace.place(mod, cluster, params=params, costs="predict", time_limit=1.0)
    print(
        f"{cluster}: {solution.predicted_ns / 1e3:.0f} us",
        dict(Counter(solution.placement.values())),
    )
solution.report("two_gpus.html")
