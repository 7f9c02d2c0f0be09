"""The kernel provider `no-double-negation`: a segment -> the same without pairs of negations."""

from tvm import relay
from tvm.relay.dataflow_pattern import DFPatternCallback, is_op, rewrite, wildcard

from heteroplace.lower.kernel_provider import SegmentPasses


class DoubleNegation(DFPatternCallback):
    def __init__(self):
        super().__init__()
        self.value = wildcard()
        self.pattern = is_op("negative")(is_op("negative")(self.value))

    def callback(self, pre, post, node_map):
        return node_map[self.value][0]


@relay.transform.function_pass(opt_level=0)
def drop_double_negations(function, mod, context):
    return rewrite(DoubleNegation(), function)


class NoDoubleNegation:
    def register(self):
        pass  # it adds no op and no schedule

    def segment_passes(self, target, shared, own_targets):
        return SegmentPasses(before_legalize=(drop_double_negations,))

    def finish(self, functions, function):
        return functions

    def with_held_weights(self, network, cluster):
        return network


NO_DOUBLE_NEGATION = NoDoubleNegation()
