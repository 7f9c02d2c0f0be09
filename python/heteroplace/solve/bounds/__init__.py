"""Problem -> a time that no plan beats, and which argument proves it."""

from heteroplace.solve.bounds.bound import Bound
from heteroplace.solve.bounds.lower_bound import EFFORTS, Effort, lower_bound

__all__ = ["EFFORTS", "Bound", "Effort", "lower_bound"]
