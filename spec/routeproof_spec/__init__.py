"""The contract of routed-experts capture: models, errors and the registry of rules."""

from routeproof_spec.capability import CAPABILITIES
from routeproof_spec.case import Call, Case, CaseStep
from routeproof_spec.config import CaptureConfig
from routeproof_spec.errors import (
    CapacityError,
    CaptureError,
    ExpertIdError,
    LayerIndexError,
    LayoutError,
    ShardGroupError,
    StepError,
    WidthError,
)
from routeproof_spec.layout import PRECEDENCE, Layout, default_layouts
from routeproof_spec.observation import ArrayData, Collective, Failure, Observation, StepObservation
from routeproof_spec.rule import CORE_RULES, Level, Rule, Surface
from routeproof_spec.scenario import AnyCase, Batch, BatchPath, Routing, Scenario
from routeproof_spec.step import Microbatch, StepContext
from routeproof_spec.topology import Rank, Topology
from routeproof_spec.verdict import ElementType, EngineProfile, Finding, Verdict
from routeproof_spec.version import SPEC_VERSION

__all__ = [
    "CAPABILITIES",
    "CORE_RULES",
    "PRECEDENCE",
    "SPEC_VERSION",
    "AnyCase",
    "ArrayData",
    "Batch",
    "BatchPath",
    "Call",
    "CapacityError",
    "CaptureConfig",
    "CaptureError",
    "Case",
    "CaseStep",
    "Collective",
    "ElementType",
    "EngineProfile",
    "ExpertIdError",
    "Failure",
    "Finding",
    "LayerIndexError",
    "Layout",
    "LayoutError",
    "Level",
    "Microbatch",
    "Observation",
    "Rank",
    "Routing",
    "Rule",
    "Scenario",
    "ShardGroupError",
    "StepContext",
    "StepError",
    "StepObservation",
    "Surface",
    "Topology",
    "Verdict",
    "WidthError",
    "default_layouts",
]
