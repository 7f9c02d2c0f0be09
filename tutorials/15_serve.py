"""
Serve a model
=============

A network is compiled, served over HTTP by ``heteroplace serve``, and called by a client. It takes
half a minute, needs no GPU, and needs ``pip install "heteroplace[serve]" "tritonclient[http]"``.
"""

# %%
# A compiled model
# ----------------
# The server loads files that ``compile`` or the command ``heteroplace compile`` has written. This
# network is written in ONNX's text form.

import re
import signal
import subprocess
import threading
import urllib.request

import numpy as np
import onnx.parser
import tritonclient.http

import heteroplace

model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 17]>
    scores (float[1, 4] x) => (float[1, 2] y)
    <float[4, 2] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}>
    { product = MatMul(x, w)  y = Softmax(product) }
""")
heteroplace.compile(model, time_limit=1.0).export_library("scores.so")

# %%
# A server
# --------
# In a shell, ``heteroplace serve scores.so`` does the same on port 8000. Port 0 takes a free one.
# The server prints its address when it is ready.

command = ["heteroplace", "serve", "scores.so", "--port", "0"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
address = re.search(r"http://(\S+:\d+)", server.stdout.readline())[1]

# %%
# A client
# --------
# Any client of the Open Inference Protocol will do. This one is Triton's, and sends raw bytes.

client = tritonclient.http.InferenceServerClient(address)
for tensor in client.get_model_metadata("scores")["inputs"]:
    print(tensor)


def request(client, row):
    """Send one row and return the scores."""
    tensor = tritonclient.http.InferInput("x", row.shape, "FP32")
    tensor.set_data_from_numpy(row)
    return client.infer("scores", [tensor]).as_numpy("y")


print(request(client, np.array([[1, 2, 3, 4]], "float32")))

# %%
# Many clients
# ------------
# Four clients at once, each in a thread of its own. Every answer is that of the client's own row.


def work(number):
    """Send 50 rows and compare the answers."""
    one = tritonclient.http.InferenceServerClient(address)
    row = np.full((1, 4), number, "float32")
    answers = {request(one, row).tobytes() for _ in range(50)}
    results.append((number, len(answers) == 1))
    one.close()


results = []
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for number, is_equal in sorted(results):
    print(f"client {number}: 50 answers, {'all equal' if is_equal else 'which differ'}")

# %%
# Metrics
# -------
# Prometheus reads ``/metrics``.

with urllib.request.urlopen(f"http://{address}/metrics") as page:
    for line in page.read().decode().splitlines():
        if line.startswith("heteroplace_requests_total"):
            print(line)

# %%
# A signal ends the server after the requests that have arrived.

client.close()
server.send_signal(signal.SIGTERM)
server.communicate()
print("exit code", server.returncode)
