"""Serve a network over HTTP by `heteroplace serve`, and call it with Triton's client."""

import subprocess

import numpy as np
import tritonclient.http

import heteroplace
from heteroplace.demo.networks import small_cnn

COMMAND = ["heteroplace", "serve", "cnn.so", "--port", "0"]
mod, params, _ = small_cnn()
heteroplace.compile(mod, params=params, costs="isolated").export_library("cnn.so")
with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as server:
    address = server.stdout.readline().rpartition("http://")[2].split()[0]
    image = tritonclient.http.InferInput("image", (1, 3, 16, 16), "FP32")
    image.set_data_from_numpy(np.ones(image.shape(), "float32"))
    with tritonclient.http.InferenceServerClient(address) as client:
        print(client.infer("cnn", [image]).as_numpy("output0").shape)
    server.terminate()
