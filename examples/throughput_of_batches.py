"""Choose the batch with the most rows per second, and run it with several calls in flight."""

import numpy as np
import onnx.parser

import heteroplace

model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 64] x) => (float[N, 64] y) { a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, w) }""")
weight = np.full((64, 64), 1 / 64, "float32")
model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
options = {"objective": "throughput", "costs": "isolated", "time_limit": 1.0}
rates = {}
for batch in (1, 16):
    rates[batch] = batch * 1e9 / heteroplace.place(model, batch=batch, **options).item_ns
best = max(rates, key=rates.get)
executable = heteroplace.compile(model, batch=best, **options)
with heteroplace.Executor(executable, max_in_flight=3) as executor:
    outputs = list(executor.run_many({"x": np.ones((best, 64), "float32")} for _ in range(9)))
print(f"batch {best}: {rates[best]:,.0f} rows/s predicted, {len(outputs)} calls done")
