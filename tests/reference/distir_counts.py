"""How many ops DistIR's program of a plan has: its steps, and what brings weights and batch from
device 0 to the ranks, which are no steps of ours (DistIR, section 4.1)."""

from heteroplace.model.plan import Collective, Copy


def distribution_ops(sharded, degrees):
    """What brings the weights and the batch to the ranks."""
    lanes, replicas = degrees.tensor, degrees.data
    ops = []
    for whole in sharded.whole:
        if sharded.graph.tensors[whole.tensors[0]].shared:
            if whole.axis is not None:
                ops.append(("split", whole.name))
            kind = "broadcast" if replicas > 1 else "send"
            ops += [(kind, whole.name, lane) for lane in range(len(whole.tensors))]
            continue
        if replicas > 1:
            ops.append(("scatter", whole.name))
        for replica in range(replicas):
            if lanes > 1:
                ops.append(("broadcast", whole.name, replica))
            elif replicas == 1:
                ops.append(("send", whole.name))
            if degrees.micro_batches > 1:
                ops += [("split", whole.name, replica, lane) for lane in range(lanes)]
    return ops


def distir_counts(sharded, degrees, plan):
    """(all ops, all-reduces, sends); sends of the distribution are counted where it has some."""
    initial = distribution_ops(sharded, degrees)
    reduces = sum(isinstance(step, Collective) for step in plan.steps)
    copies = sum(isinstance(step, Copy) for step in plan.steps)
    sends = copies + sum(op[0] == "send" for op in initial)
    return len(plan.steps) + len(initial), reduces, sends
