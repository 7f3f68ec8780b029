"""The executable spec: all ranks of a run as one pure function."""

from routeproof_reference.capturer import ReferenceCapturer
from routeproof_reference.context import Tensors, logical_ids, physical, right_context, tensors
from routeproof_reference.expected import Expectation, StepExpectation, expected
from routeproof_reference.plan import Plan, plan
from routeproof_reference.producer import Producer, producers
from routeproof_reference.resolve import Resolution, resolve, shard_rows
from routeproof_reference.rows import Kind, Origin, Origins, Rows

__all__ = [
    "Expectation",
    "Kind",
    "Origin",
    "Origins",
    "Plan",
    "Producer",
    "ReferenceCapturer",
    "Resolution",
    "Rows",
    "StepExpectation",
    "Tensors",
    "expected",
    "logical_ids",
    "physical",
    "plan",
    "producers",
    "resolve",
    "right_context",
    "shard_rows",
    "tensors",
]
