"""Cross-validation: errors that are known, and what may not be peeked at."""

import pytest

from heteroplace.costs.cross_validation import (
    HeldOutCell,
    accuracy,
    cross_validate,
    cross_validation_table,
)
from heteroplace.costs.methods import CALIBRATED, EQUAL_TASK, METHODS, PLAIN, REGRESSION, WAVES
from heteroplace.model.cost import Cost, build_table
from tests.unit.costs.synthetic import layers, machine, measured_table, true_ns

GRAPH, CLUSTER = layers(), machine()
NAMES = [device.name for device in CLUSTER.devices]


def trials_of(trials, device, method):
    wanted = NAMES.index(device)
    return [trial for trial in trials if (trial.device, trial.method) == (wanted, method)]


@pytest.fixture(scope="module")
def validation():
    return cross_validate(GRAPH, CLUSTER, measured_table(GRAPH, CLUSTER, set()))


def test_accuracy_of_trials_worked_by_hand():
    errors = [0, 1, 2, 3, 4, 5, 6, 7, 8, 90]
    trials = [HeldOutCell(PLAIN, i, 0, "op", 100 + e, 100) for i, e in enumerate(errors)]
    found = accuracy(trials)
    assert (found.num_trials, found.median_error, found.p90_error) == (10, 0.045, 0.08)
    assert found.spearman is None  # all measured times are equal
    ranked = [
        HeldOutCell(PLAIN, i, 0, "op", p, m) for i, (p, m) in enumerate([(1, 5), (2, 6), (4, 7)])
    ]
    assert accuracy(ranked).spearman == 1.0


def test_devices_that_obey_a_law_are_predicted_from_the_others(validation):
    for device in ("t4", "v100", "h200"):
        found = accuracy(trials_of(validation.by_device, device, WAVES))
        assert found.num_trials == len(GRAPH.tasks)
        assert found.p90_error < 0.05  # the law starts at the T4; between the others it is close
    for device in ("old", "new", "twin.0"):
        assert accuracy(trials_of(validation.by_device, device, CALIBRATED)).p90_error < 0.05
        plain = accuracy(trials_of(validation.by_device, device, PLAIN))
        # Half the tasks take 2 times, the others 5 times the roofline: errors of 50 and 80 %.
        assert plain.median_error == pytest.approx(0.65, abs=0.02)


def test_kernels_that_obey_a_law_are_predicted_from_the_others(validation):
    found = accuracy(trials_of(validation.by_kernel, "npu", REGRESSION))
    assert found.num_trials > 10
    assert found.p90_error < 0.01
    assert found.spearman == pytest.approx(1.0, abs=0.01)


def test_a_device_is_not_predicted_from_its_twin(validation):
    """Else it would be perfect, and say nothing about a device that is not there."""
    changed = build_table(
        GRAPH,
        CLUSTER,
        lambda task, device: Cost.measured(
            true_ns(GRAPH, CLUSTER, task, device) * (7 if NAMES[device].startswith("twin") else 1)
        ),
    )
    trials = cross_validate(GRAPH, CLUSTER, changed).by_device
    before = trials_of(validation.by_device, "twin.0", CALIBRATED)
    after = trials_of(trials, "twin.0", CALIBRATED)
    assert [t.predicted_ns for t in after] == [t.predicted_ns for t in before]


def test_a_kernel_is_not_predicted_from_itself():
    """One odd size of many: leaving it out must show its whole error."""
    odd = GRAPH.tasks.index(next(task for task in GRAPH.tasks if task.name == "add5"))

    def cost(task, device):
        ns = true_ns(GRAPH, CLUSTER, task, device)
        return Cost.measured(ns * 10 if task == odd else ns)

    trials = cross_validate(GRAPH, CLUSTER, build_table(GRAPH, CLUSTER, cost)).by_kernel
    wrong = [
        trial for trial in trials if trial.task == odd and trial.method in (REGRESSION, CALIBRATED)
    ]
    assert wrong
    assert all(trial.error == pytest.approx(0.9, abs=0.05) for trial in wrong)


def test_equal_tasks_are_tried_where_there_are_any():
    graph = layers((64, 64, 64, 64))
    trials = cross_validate(graph, CLUSTER, measured_table(graph, CLUSTER, set())).by_kernel
    equal = [trial for trial in trials if trial.method == EQUAL_TASK]
    assert equal
    assert all(trial.error == 0 for trial in equal)


def test_nothing_measured_gives_no_trials():
    table = measured_table(GRAPH, CLUSTER, {("*", name) for name in NAMES})
    found = cross_validate(GRAPH, CLUSTER, table)
    assert (found.by_device, found.by_kernel) == ((), ())
    assert "no method applies" in cross_validation_table(CLUSTER, found)


def test_the_table_has_devices_methods_and_ops(validation):
    text = cross_validation_table(CLUSTER, validation)
    assert "each device predicted from the others\ndevice  method" in text
    assert "each kernel predicted from the others of its device, by op\nop" in text
    row = next(line for line in text.splitlines() if line.startswith("h200    wave scaling"))
    found = accuracy(trials_of(validation.by_device, "h200", WAVES))
    median, p90 = f"{100 * found.median_error:.1f}", f"{100 * found.p90_error:.1f}"
    assert row.split()[3:] == ["16", median, "%", p90, "%", f"{found.spearman:.3f}"]
    assert {method for method in METHODS if method in text} >= {WAVES, CALIBRATED, PLAIN}
    short = cross_validation_table(CLUSTER, validation, per_op=False)
    assert "by op" not in short
