"""Every exception type of the package.

A message says what is wrong, where (file and JSON path, task, device, step), what was expected and
what was found, and how to mend it. It is written where the error is raised.
"""

from __future__ import annotations

from heteroplace.terminal import printable


class HeteroPlaceError(Exception):
    """Base of every error that heteroplace raises on purpose.

    As text its characters are printable: messages quote names out of files.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class ClusterError(HeteroPlaceError):
    """A cluster file or value is wrong, or two devices cannot reach each other."""


class GraphError(HeteroPlaceError):
    """A task graph is malformed: a cycle, a duplicate name, a negative size."""


class FrontendError(HeteroPlaceError):
    """A model file cannot be read, or holds an op or a shape that cannot be compiled."""


class UnsupportedRelayError(HeteroPlaceError):
    """A Relay module uses a form that cannot be cut into tasks (control flow, references)."""


class TrainingError(HeteroPlaceError):
    """A training step is asked for that there is none of: an unknown loss, nothing to train."""


class MissingPackageError(HeteroPlaceError, ImportError):
    """A package that a part of heteroplace needs is not installed."""


class MissingTVMError(MissingPackageError):
    """No TVM with Relay is installed, or its version is not one that was tested."""


class MissingCostError(HeteroPlaceError):
    """A cost that is needed is unknown."""


class CostMismatchError(HeteroPlaceError):
    """A cost table belongs to another graph or another cluster."""


class CostStoreError(HeteroPlaceError):
    """A store of measured costs is damaged, foreign or of another version, or cannot be written."""


class InfeasibleError(HeteroPlaceError):
    """There is no plan: no placement satisfies the memory, link and pinning constraints."""


class SolverLimitError(InfeasibleError):
    """There is no plan, since none was found within the budget; that none exists is not proven."""


class SolverError(HeteroPlaceError):
    """A solver was asked for something that it cannot do, or an option is out of range."""


class SolverLicenceError(SolverError):
    """A solver's licence is missing, or too small for the model."""


class PlanError(HeteroPlaceError):
    """A plan breaks a rule of the execution model, or belongs to another graph or cluster."""


class ShardingError(HeteroPlaceError):
    """A network cannot be cut as asked: degrees that do not divide, an axis that ends, a device."""


class RoutingError(HeteroPlaceError):
    """A router, a route decision or a profile of them is wrong, or belongs to another model."""


class LoweringError(HeteroPlaceError):
    """The compiled kernels and the plan disagree."""


class ArtifactError(HeteroPlaceError):
    """A compiled file is truncated, foreign, or of another format or TVM version."""


class ExecutionError(HeteroPlaceError):
    """A run failed, or was asked for with wrong inputs."""


class MissingDeviceError(ExecutionError):
    """A device of a plan, or what its code needs of one, is not in this machine."""


class VerificationError(HeteroPlaceError):
    """A compiled network's numbers are not those of its model, or could not be compared."""
