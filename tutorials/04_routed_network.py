"""
A network that computes a part of itself
========================================

A layer of experts as in Switch Transformers, written as an ordinary static network: every expert is
computed for every token, and a gate of 0 throws most of it away. A few lines make it routed,
so that tokens reach their expert only. It takes a minute and needs no GPU.
"""

# %%
# The static network: 64 tokens of width 64, 8 experts. Each line of the layer that is changed below
# is marked.

import numpy as np
import tvm
from tvm import relay, transform

import heteroplace
from heteroplace import routing
from heteroplace.parts.routing.find.find_routers import find_routers

TOKENS, WIDTH, HIDDEN, EXPERTS = 64, 64, 128, 8
random = np.random.default_rng(0)


def weight(*shape):
    """Random numbers, the same for both networks in the same order."""
    return relay.const((random.standard_normal(shape) / shape[-1] ** 0.5).astype("float32"))


def expert(weights):
    """A function of tokens: two products with a relu between them."""
    return lambda rows: relay.nn.dense(relay.nn.relu(relay.nn.dense(rows, weights[0])), weights[1])


experts = [expert((weight(HIDDEN, WIDTH), weight(WIDTH, HIDDEN))) for _ in range(EXPERTS)]
router = weight(EXPERTS, WIDTH)


def static_layer(x):
    """Every expert for every token."""
    scores = relay.nn.softmax(relay.nn.dense(x, router))
    best = relay.one_hot(  # changed, with its arguments
        relay.argmax(scores, axis=1), relay.const(1.0), relay.const(0.0), EXPERTS, -1, "float32"
    )
    gates = relay.split(relay.multiply(best, scores), EXPERTS, axis=1)  # changed
    total = relay.multiply(gates[0], experts[0](x))  # changed
    for index in range(1, EXPERTS):  # changed
        total = relay.add(total, relay.multiply(gates[index], experts[index](x)))  # changed
    return relay.add(x, total)  # changed


# %%
# The routed network
# ------------------
# The rows of ``x`` are its cells; ``top_k`` decides by the scores, which are the gates as well, and
# the branches are the experts as they were. What is marked has become three lines.


def routed_layer(x):
    """Every token to its own expert."""
    scores = relay.nn.softmax(relay.nn.dense(x, router))
    cells = routing.annotate_cell(x, dims=(0,), shape=(1, WIDTH))
    y = routing.route(cells, routing.top_k(scores, k=1), branches=experts, gate="combine")
    return relay.add(x, y)


def module(layer):
    """A network of one layer."""
    x = relay.var("x", shape=(TOKENS, WIDTH))
    return tvm.IRModule.from_expr(relay.Function([x], layer(x)))


# %%
# Or let it be found
# ------------------
# ``FindRouters`` reads the static network, proves that the gates are 0 for all experts but one, and
# writes the same routers; ``find_routers`` says what it found. Files of exporters are read alike.

found = find_routers(module(static_layer))
print("\n".join(found.report))

# %%
# All three are built for this machine, and give the same numbers.

x = random.standard_normal((TOKENS, WIDTH)).astype("float32")
cluster = heteroplace.local_cluster(has_gpus=False)
outputs = {}
mods = {"static": module(static_layer), "routed": module(routed_layer), "found": found.mod}
for name, mod in mods.items():
    with transform.PassContext(opt_level=3):
        executable = heteroplace.build(mod, cluster, time_limit=5.0)
    executor = heteroplace.Executor(executable)
    (outputs[name],) = executor.run(x=x)
    print(f"{name}: {np.median(executor.benchmark(50)) / 1e3:.0f} us")
for name in ("routed", "found"):
    np.testing.assert_allclose(outputs[name], outputs["static"], rtol=1e-4, atol=1e-4)
