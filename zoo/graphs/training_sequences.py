"""Training graphs of networks of sequences: translation by LSTM layers, and a transformer.

Sizes are chosen so that a step has about as many nodes as Celeritas' graphs of these names have
(`training_networks.py` says which); what was trained there is not published.
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.model.graph import TaskGraph
from zoo.graphs.training import Network, Value

_NUM_WORDS = 32_000


@dataclass(frozen=True)
class _Cell:
    """The variables of one LSTM layer, and what it holds."""

    weights: Value
    bias: Value
    hidden: Value
    memory: Value


def nmt(
    batch: int = 1024,
    steps: int = 34,
    layers: int = 4,
    units: int = 2048,
    *,
    colocates_gradients: bool = False,
) -> TaskGraph:
    """Return a step of translation: an encoder and a decoder of LSTM layers, unrolled over `steps`
    words each, Luong's attention, and a softmax over 32,000 words."""
    network = _Sequences("nmt", batch)
    encoder = [network.cell(f"encoder{layer}", units) for layer in range(layers)]
    decoder = [network.cell(f"decoder{layer}", units) for layer in range(layers)]
    words = network.words("source", steps, units)
    states = [network.advance(encoder, word) for word in words]
    flat = network.add("concat", states, (batch, steps * units))
    memory = network.add("reshape", [flat], (batch, steps, units))
    turned = network.add("transpose", [memory], (batch, units, steps))
    mixed = network.variable("attention/weights", (2 * units, units))
    heads = []
    for word in network.words("target", steps, units):
        state = network.advance(decoder, word)
        query = network.add("reshape", [state], (batch, 1, units))
        flops = 2 * batch * steps * units
        scores = network.add("batch_matmul", [query, turned], (batch, 1, steps), flops=flops)
        shares = network.add("softmax", [scores], scores.shape)
        context = network.add("batch_matmul", [shares, memory], (batch, 1, units), flops=flops)
        context = network.add("reshape", [context], (batch, units))
        both = network.add("concat", [state, context], (batch, 2 * units))
        heads.append(network.add("tanh", [network.product(both, mixed)], (batch, units)))
    rows = network.add("concat", heads, (batch, steps * units))
    rows = network.add("reshape", [rows], (batch * steps, units))
    losses = [network.guess(rows)]
    return network.training_graph(losses, colocates_gradients=colocates_gradients)


def transformer(
    batch: int = 32,
    length: int = 512,
    layers: int = 19,
    heads: int = 16,
    hidden: int = 1024,
    *,
    colocates_gradients: bool = False,
) -> TaskGraph:
    """Return a step of a decoder-only transformer whose heads are ops of their own."""
    network = _Sequences("transformer", batch)
    tokens = batch * length
    [x] = network.words("text", 1, hidden, rows=tokens)
    for layer in range(layers):
        name = f"layer{layer}"
        normed = network.norm(f"{name}/norm1", x)
        made = [
            network.head(f"{name}/head{head}", normed, batch, length, hidden // heads)
            for head in range(heads)
        ]
        joined = network.add("concat", made, (tokens, hidden))
        x = network.sum([network.dense(f"{name}/out", joined, hidden), x])
        inner = network.dense(f"{name}/wide", network.norm(f"{name}/norm2", x), 4 * hidden)
        inner = network.add("gelu", [inner], inner.shape)
        x = network.sum([network.dense(f"{name}/narrow", inner, hidden), x])
    losses = [network.guess(network.norm("norm", x))]
    return network.training_graph(losses, colocates_gradients=colocates_gradients)


class _Sequences(Network):
    """Layers of networks of words; values are [rows, units]."""

    def __init__(self, name: str, batch: int) -> None:
        super().__init__(name)
        self._batch = batch

    def words(self, name: str, steps: int, units: int, rows: int | None = None) -> list[Value]:
        """Add an embedding and what it gives for the words of each step."""
        rows = rows or self._batch
        table = self.variable(f"{name}/embedding", (_NUM_WORDS, units))
        indices = [self.input(f"{name}/{step}", (rows,)) for step in range(steps)]
        return [self.add("gather", [table, index], (rows, units)) for index in indices]

    def guess(self, rows: Value) -> Value:
        """Add a softmax over all words, and its loss."""
        scores = self.dense("words", rows, _NUM_WORDS)
        labels = self.input("labels", (rows.shape[0], 1))
        return self.add("loss", [self.add("softmax", [scores], scores.shape), labels], (1,))

    def cell(self, name: str, units: int) -> _Cell:
        """Add the variables of an LSTM layer; it begins with zeros."""
        shape = (self._batch, units)
        return _Cell(
            self.variable(f"{name}/weights", (2 * units, 4 * units)),
            self.variable(f"{name}/bias", (4 * units,)),
            self.input(f"{name}/hidden", shape),
            self.input(f"{name}/memory", shape),
        )

    def advance(self, cells: list[_Cell], x: Value) -> Value:
        """Add one step of all layers; the cells hold their new states."""
        for layer, cell in enumerate(cells):
            shape = cell.hidden.shape
            both = self.add("concat", [x, cell.hidden], (shape[0], x.shape[1] + shape[1]))
            sums = self.add(
                "bias_add",
                [self.product(both, cell.weights), cell.bias],
                (
                    shape[0],
                    4 * shape[1],
                ),
            )
            gates = self.add_parts("split", [sums], [shape] * 4)
            enter, forget, leave = (self.add("sigmoid", [gate], shape) for gate in gates[:3])
            new = self.add("tanh", [gates[3]], shape)
            kept = self.add("multiply", [forget, cell.memory], shape)
            memory = self.sum([kept, self.add("multiply", [enter, new], shape)])
            x = self.add("multiply", [leave, self.add("tanh", [memory], shape)], shape)
            cells[layer] = _Cell(cell.weights, cell.bias, x, memory)
        return x

    def head(self, name: str, x: Value, batch: int, length: int, size: int) -> Value:
        """Add attention of one head; return [rows, size]."""
        tokens = batch * length
        query, key, value = (
            self.add("reshape", [self.dense(f"{name}/{part}", x, size)], (batch, length, size))
            for part in ("query", "key", "value")
        )
        turned = self.add("transpose", [key], (batch, size, length))
        flops = 2 * tokens * length * size
        square = (batch, length, length)
        scores = self.add("batch_matmul", [query, turned], square, flops=flops)
        shares = self.add("softmax", [self.add("scale", [scores], square)], square)
        mixed = self.add("batch_matmul", [shares, value], (batch, length, size), flops=flops)
        return self.add("reshape", [mixed], (tokens, size))

    def norm(self, name: str, x: Value) -> Value:
        """Add a norm of each row, with its scale and shift."""
        size = x.shape[-1]
        scale = self.variable(f"{name}/scale", (size,))
        return self.add("layer_norm", [x, scale, self.variable(f"{name}/shift", (size,))], x.shape)

    def dense(self, name: str, x: Value, columns: int) -> Value:
        """Add a dense layer with a bias."""
        product = self.product(x, self.variable(f"{name}/weights", (x.shape[-1], columns)))
        bias = self.variable(f"{name}/bias", (columns,))
        return self.add("bias_add", [product, bias], product.shape)

    def product(self, x: Value, weights: Value) -> Value:
        """Add a product with a variable."""
        rows, depth = x.shape
        columns = weights.shape[-1]
        flops = 2 * rows * depth * columns
        return self.add("matmul", [x, weights], (rows, columns), flops=flops)

    def sum(self, values: list[Value]) -> Value:
        """Add two values of one shape."""
        return self.add("add", values, values[0].shape)
