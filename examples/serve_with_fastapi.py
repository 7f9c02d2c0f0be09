"""A network behind HTTP, by FastAPI; `uvicorn examples.serve_with_fastapi:app` serves it."""

import numpy as np
import tvm
from fastapi import FastAPI

import heteroplace
from heteroplace.demo.networks import small_cnn

mod, params, _ = small_cnn()
with tvm.transform.PassContext(opt_level=3):
    executable = heteroplace.build(mod, "local", params=params, costs="isolated")
app, executor = FastAPI(), heteroplace.Executor(executable, max_in_flight=2)
print(executor.run(image=np.ones((1, 3, 16, 16), "float32"))[0].ravel()[:3])


@app.post("/run")
def run(image: list[list[list[float]]]) -> list[float]:  # FastAPI calls it in a thread
    return executor.run(image=np.array([image], "float32"))[0].ravel().tolist()
