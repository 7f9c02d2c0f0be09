"""A filter that runs on a stream, and a second stream of its own beside it."""

import numpy as np
from onnx.parser import parse_model

import heteroplace

smoothing = parse_model("""
<ir_version: 8, opset_import: ["": 17]>
smoothing (float[4] x, float[4] h) => (float[4] y, float[4] hn) <float half = {0.5}>
{ sum = Add(x, h)  y = Mul(sum, half)  hn = Identity(y) }
""")
executable = heteroplace.compile(smoothing, state="auto", costs="isolated")
executor = heteroplace.Executor(executable)
stream, other = executor.session(), executor.session()
for number in range(4):
    (y,) = stream.run(x=np.full(4, number, "float32"))
    print(number, y)
print("the other stream:", *other.run(x=np.ones(4, "float32")))
