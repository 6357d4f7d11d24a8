"""Load tests: whole conversations against a runtime, a model server or a chat backend, with the check that counts.

Needs the extra `loadtest`.
"""

from ._dice import Dice, read_dice, read_seconds
from ._ledger import Check
from ._measure import Bucket, Recorder
from ._run import run_load
from ._toml import as_toml
from .backend import BackendTarget
from .page import as_page
from .report import LoadReport
from .scenario import Burst, Clients, Provider, RuntimeShape, Scenario, Turn, read_scenario, read_trace, scenario_of
from .targets import Depth, InProcess, Target
from .thresholds import Judged, Threshold, read_threshold

__all__ = [
    "BackendTarget",
    "Bucket",
    "Burst",
    "Check",
    "Clients",
    "Depth",
    "Dice",
    "InProcess",
    "Judged",
    "LoadReport",
    "Provider",
    "Recorder",
    "RuntimeShape",
    "Scenario",
    "Target",
    "Threshold",
    "Turn",
    "as_page",
    "as_toml",
    "read_dice",
    "read_scenario",
    "read_seconds",
    "read_threshold",
    "read_trace",
    "run_load",
    "scenario_of",
]
