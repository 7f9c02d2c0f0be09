"""Every exception type of the package: its code, its cause, and how such errors are mended.

The codes stay what they are: HP1xx inputs of planning, HP2xx models, HP3xx what is not installed,
HP4xx costs, HP5xx plans, HP6xx compiled files, HP7xx runs. The first line of a class is the cause.

A message says what is wrong, where (file and JSON path, task, device, step), what was expected and
what was found, and how to mend it. It is written where the error is raised.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import ClassVar, cast

from heteroplace.terminal import printable


class HeteroPlaceError(Exception):
    """Base of every error that heteroplace raises on purpose.

    As text its characters are printable: messages quote names out of files.
    """

    code: ClassVar[str] = "HP001"
    """Of the type, for people who look it up."""
    remedy: ClassVar[str] = "change what the message names"
    """How errors of this type are mended, in general; the message says it for the case at hand."""

    def __str__(self) -> str:
        return printable(super().__str__())


class ClusterError(HeteroPlaceError):
    """A cluster file or value is wrong, or two devices cannot reach each other."""

    code = "HP101"
    remedy = (
        "heteroplace check cluster.json names the faults; heteroplace clusters and probe make "
        "cluster files that are right"
    )


class GraphError(HeteroPlaceError):
    """A task graph is malformed: a cycle, a duplicate name, a negative size."""

    code = "HP102"
    remedy = (
        "heteroplace check graph.json names the faults of a file; TaskGraphBuilder says what a "
        "graph needs"
    )


class FrontendError(HeteroPlaceError):
    """A model file cannot be read, or holds an op or a shape that cannot be compiled."""

    code = "HP201"
    remedy = (
        "check the file with onnx.checker; give sizes that it leaves open "
        "(--input NAME=1,3,224,224); export it with fixed shapes and ops of the standard domain"
    )


class UnsupportedRelayError(HeteroPlaceError):
    """A Relay module uses a form that cannot be cut into tasks (control flow, references)."""

    code = "HP202"
    remedy = "write loops out, import If as routers (FindRouters), give all inputs fixed shapes"


class TrainingError(HeteroPlaceError):
    """A training step is asked for that there is none of: an unknown loss, nothing to train."""

    code = "HP203"
    remedy = "name a loss that there is, and parameters that have gradients"


class MissingPackageError(HeteroPlaceError, ImportError):
    """A package that a part of heteroplace needs is not installed."""

    code = "HP301"
    remedy = "install the package that the message names; heteroplace doctor lists what is missing"


class MissingTVMError(MissingPackageError):
    """No TVM with Relay is installed, or its version is not one that was tested."""

    code = "HP302"
    remedy = "heteroplace setup-tvm; planning works without it"


class PluginError(HeteroPlaceError):
    """An installed package plugs into heteroplace wrongly: its entry point cannot be used."""

    code = "HP303"
    remedy = "install the package that the message names again, or uninstall it"


class MissingCostError(HeteroPlaceError):
    """A cost that is needed is unknown."""

    code = "HP401"
    remedy = (
        "measure (heteroplace profile), give costs that know it, let --missing predict or "
        "estimate fill it in, or leave the device out (--exclude)"
    )


class CostMismatchError(HeteroPlaceError):
    """A cost table belongs to another graph or another cluster."""

    code = "HP402"
    remedy = "give the table of this graph and cluster, or measure again"


class CostStoreError(HeteroPlaceError):
    """A store of measured costs is damaged, foreign or of another version, or cannot be written."""

    code = "HP403"
    remedy = (
        "give another file by --store or HETEROPLACE_COSTS, or make the store anew with "
        "heteroplace costs export and import"
    )


class CostStoreUnavailableError(CostStoreError):
    """A store of measured costs cannot be read or written now: a full disk, a read-only folder."""

    code = "HP404"
    remedy = "make room, or give another file by --store or HETEROPLACE_COSTS"


class InfeasibleError(HeteroPlaceError):
    """There is no plan: no placement satisfies the memory, link and pinning constraints."""

    code = "HP501"
    remedy = (
        "allow another device, raise a limit (--max-memory), drop a pin, or give the tasks "
        "that do not fit more memory; the message names the task and what it lacks"
    )


class SolverLimitError(InfeasibleError):
    """There is no plan, since none was found within the budget; that none exists is not proven."""

    code = "HP502"
    remedy = "give more time (--budget), or another solver (--solver heft plans at once)"


class SolverError(HeteroPlaceError):
    """A solver was asked for something that it cannot do, or an option is out of range."""

    code = "HP503"
    remedy = (
        "change the option that the message names; heteroplace place -h lists solvers and options"
    )


class SolverLicenceError(SolverError):
    """A solver's licence is missing, or too small for the model."""

    code = "HP504"
    remedy = "use --engine highs, or install a full licence of the solver"


class PlanError(HeteroPlaceError):
    """A plan breaks a rule of the execution model, or belongs to another graph or cluster."""

    code = "HP505"
    remedy = (
        "place the model again; heteroplace check plan.json --graph graph.json --cluster "
        "cluster.json names every rule that a plan breaks"
    )


class ShardingError(HeteroPlaceError):
    """A network cannot be cut as asked: degrees that do not divide, an axis that ends, a device."""

    code = "HP506"
    remedy = (
        "give degrees that divide the batch and the axes, and as many devices as they multiply to"
    )


class RoutingError(HeteroPlaceError):
    """A router, a route decision or a profile of them is wrong, or belongs to another model."""

    code = "HP507"
    remedy = (
        "record decisions of this model again; heteroplace routes show says for which model a "
        "profile is"
    )


class LoweringError(HeteroPlaceError):
    """A module cannot be compiled as asked: annotations, options, plan or targets disagree."""

    code = "HP601"
    remedy = (
        "change what the message names: an annotation, an option or a device; let HeteroPlace or "
        "Shard be the last pass, and build from the module that it returned"
    )


class ArtifactError(HeteroPlaceError):
    """A compiled file is truncated, foreign, or of another format or TVM version."""

    code = "HP602"
    remedy = "compile the model again with this version, or give a file that can be written"


class PaddingError(HeteroPlaceError):
    """Results of a model depend on padding, so one file cannot take calls of any length."""

    code = "HP603"
    remedy = (
        "give the model a mask that leaves out padded places, or compile each size as an entry "
        "without padding (entries=, --entry)"
    )


class ExecutionError(HeteroPlaceError):
    """A run failed, or was asked for with wrong inputs."""

    code = "HP701"
    remedy = (
        "give every input its name, shape and type; heteroplace-run model.so --describe lists them"
    )


class MissingDeviceError(ExecutionError):
    """A device of a plan, or what its code needs of one, is not in this machine."""

    code = "HP702"
    remedy = "compile for the devices of this machine, or load with on_missing='replan'"


class VerificationError(HeteroPlaceError):
    """A compiled network's numbers are not those of its model, or could not be compared."""

    code = "HP703"
    remedy = (
        "run with verify='off' to look at the numbers yourself, and report the model: a wrong "
        "result is a bug"
    )


def error_types() -> Iterator[type[HeteroPlaceError]]:
    """Yield every type of error, by its code."""
    types = [HeteroPlaceError]
    for error_type in types:
        types += [cls for cls in error_type.__subclasses__() if cls.__module__ == __name__]
    yield from sorted(dict.fromkeys(types), key=lambda cls: cls.code)


def cause_of(cls: type[HeteroPlaceError]) -> str:
    """Return what errors of a type mean, as one sentence."""
    doc = cls.__doc__
    if doc is None:  # `python -OO` strips it from the class, but not from its source
        (parsed,) = ast.parse(inspect.getsource(cls)).body
        doc = ast.get_docstring(cast("ast.ClassDef", parsed))
    return (doc or "").partition("\n\n")[0].strip()
