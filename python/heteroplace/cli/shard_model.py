"""An ONNX file, a cluster and options -> degrees, ranked and run. Loaded late, as it needs TVM."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import tvm
from tvm.driver.tvmc.shape_parser import parse_shape_string

from heteroplace import pipeline
from heteroplace.codegen.executable import Executable
from heteroplace.errors import FrontendError, MissingCostError
from heteroplace.measure.example_inputs import made_up
from heteroplace.model.cluster import Cluster
from heteroplace.model.demands import check_reachable
from heteroplace.relay.frontend.importer import from_onnx
from heteroplace.run.devices import missing_devices
from heteroplace.run.executor import Executor
from heteroplace.sharding.options import ShardOptions
from heteroplace.sharding.plan import ShardedModel, plan_model
from heteroplace.sharding.search import row_of, search_degrees
from heteroplace.sharding.source import ModelSource
from heteroplace.transforms.degrees import Degrees
from heteroplace.transforms.search_rows import SearchRow

OPT_LEVEL = 3
