"""Facts about the catalogue of cases."""

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise

import pytest
from routeproof_conformance.cases import all_cases, select
from routeproof_reference import expected
from routeproof_spec import CAPABILITIES, Case, Layout, Topology
from routeproof_spec.rules import RULES

CASES = all_cases()
REQUIRED = ("tp1", "tp2", "tp4", "tp2dp2", "dp2")
"""Topologies that the catalogue covers in depth."""
LEAST = {"LAY": 36, "COL": 36, "BUF": 36, "SNP": 36, "GAT": 36, "IDS": 12}
"""Cases of each group on each of them; rules of IDS depend on E more than on ranks."""
ID = re.compile(r"([A-Z]{3}-\d\d)/([a-z0-9]+(?:-[a-z0-9]+)*)\[((?:[A-Za-z_]+=[A-Za-z0-9_.+-]+,?)*)\]")

# The one rejection whose error is no matter of a step: the configuration is refused.
REFUSED_AT_CREATION = "SNP-02/beyond-two-bytes[tp=1,dp=1,E=65537]"


@cache
def outcomes(case):
    """Whether each step must be rejected, by at least one DP rank."""
    return tuple(any(at.error is not None for at in step) for step in expected(case))


@cache
def at_topology(spelt):
    return [case for case in CASES if str(case.topology) == spelt]


# --- ids and sizes


def test_ids_are_unique_well_formed_and_say_the_topology():
    assert len({case.id for case in CASES}) == len(CASES)
    for case in CASES:
        match = ID.fullmatch(case.id)
        assert match, case.id
        assert match[1] == case.rule
        axes = dict(axis.split("=") for axis in match[3].split(","))
        assert list(axes)[:2] == ["tp", "dp"], case.id
        assert (int(axes["tp"]), int(axes["dp"])) == (case.topology.tp, case.topology.dp), case.id
        if "T" in axes and case.rule in ("LAY-02", "LAY-03", "LAY-05", "LAY-07"):
            assert tuple(map(int, axes["T"].split("+"))) == case.steps[-1].context.counts, case.id


def test_there_are_enough_cases():
    assert len(CASES) >= 2500
    families = defaultdict(set)
    for case in CASES:
        families[case.rule[:3]].add(case.family)
    assert {group for group, names in families.items() if len(names) >= 3} >= {
        "LAY",
        "COL",
        "BUF",
        "SNP",
        "IDS",
    }


@pytest.mark.parametrize("spelt", REQUIRED)
def test_required_topologies_have_enough_cases_of_every_group(spelt):
    groups = Counter(group for case in at_topology(spelt) for group in {rule[:3] for rule in case.rules})
    assert set(groups) == set(LEAST)
    for group, least in LEAST.items():
        assert groups[group] >= least, (group, groups)


def counts_of(case):
    """The counts of all steps after the first, which only fills the buffer."""
    return [step.context.counts for step in case.steps[1:] if step.context.counts is not None]


def reuses(case):
    """A buffer that held more tokens is used again."""
    counts = [step.context.counts for step in case.steps]
    return any(
        all(before[dp] > after[dp] for dp in range(case.topology.dp))
        for before, after in pairwise(counts)
        if before is not None and after is not None
    )


KINDS = {
    "odd": lambda case: any(count % 2 and count > 1 for counts in counts_of(case) for count in counts),
    "empty": lambda case: any(0 in counts for counts in counts_of(case)),
    "all empty": lambda case: any(not any(counts) for counts in counts_of(case)),
    "single": lambda case: any(1 in counts for counts in counts_of(case)),
    "unequal": lambda case: any(len(set(counts)) > 1 for counts in counts_of(case)),
    "padded": lambda case: any(
        step.context.counts not in (None, step.context.real) and not step.context.microbatches
        for step in case.steps
    ),
    "shards that need padding": lambda case: any(
        step.emitted is Layout.TP_SHARD and any(count % case.topology.tp for count in step.context.counts)
        for step in case.steps
    ),
    "reuse": reuses,
    "microbatches": lambda case: any(len(step.context.microbatches) > 1 for step in case.steps),
    "staged": lambda case: any(step.context.staged for step in case.steps),
    "rejected": lambda case: any(outcomes(case)),
    "no counts": lambda case: any(step.context.counts is None for step in case.steps),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spelt", REQUIRED)
def test_every_kind_of_batch_occurs_on_every_required_topology(spelt, kind):
    found = [case.id for case in at_topology(spelt) if KINDS[kind](case)]
    impossible = (kind == "unequal" and "dp" not in spelt) or (
        kind == "shards that need padding" and spelt in ("tp1", "dp2")
    )
    assert impossible == (not found), (kind, found[:3])


# --- rules, rejections, twins


def test_listed_rules_and_capabilities_exist():
    for case in CASES:
        assert set(case.rules) <= set(RULES), case.id
        assert len(set(case.rules)) == len(case.rules), case.id
        assert set(case.capabilities) <= set(CAPABILITIES), case.id


def test_microbatches_and_declarations_are_claimed():
    for case in CASES:
        steps = [step.context for step in case.steps]
        need = {
            "microbatches": any(step.microbatches for step in steps),
            "staged-microbatches": any(step.staged for step in steps),
            "declared-layouts": any(step.declared is not None for step in steps),
            "shared-columns": case.config.shared_columns > 0,
            "layout-sets": case.config.layouts is not None,
        }
        assert {name for name, needed in need.items() if needed} <= set(case.capabilities), case.id


def test_a_rejected_case_expects_an_error_in_one_step_and_its_twin_none():
    rejections = [case for case in CASES if any(outcomes(case)) and case.id != REFUSED_AT_CREATION]
    assert len(rejections) > 500
    for case in rejections:
        assert sum(outcomes(case)) == 1, case.id
        assert case.twin is not None, case.id
        assert not any(outcomes(case.twin)), case.id


def test_an_accepted_case_has_a_twin_only_without_its_mask():
    for case in CASES:
        if case.twin is not None:
            assert any(outcomes(case)) or case.family == "LAY-07/mask", case.id


def changed(one, other, path=""):
    """Paths of the fields in which two models differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {at for key in one for at in changed(one[key], other[key], f"{path}.{key}")}
    return set() if one == other else {path.removeprefix(".")}


JUDGED = {
    "LAY-01": {"calls"},
    "LAY-06": {"emitted", "context.declared"},
    "LAY-07": {"mask"},
    "LAY-08": {"calls", "context.shard_sizes"},
    "LAY-10": {"calls"},
    "BUF-03": {"calls"},
    "BUF-04": {"context.counts", "context.real", "context.shard_sizes", "context.microbatches"},
    "BUF-09": {"calls"},
    "IDS-02": {"ids", "element"},
}
"""What a wrong step may have that its twin's has not, by rule."""


def check_twin(case):
    twin = case.twin
    assert (twin.id, twin.topology, twin.config) == (case.id, case.topology, case.config)
    assert twin.capabilities == case.capabilities
    assert len(twin.steps) == len(case.steps)
    wrong = outcomes(case).index(True) if any(outcomes(case)) else len(case.steps) - 1
    for index, (one, other) in enumerate(zip(case.steps, twin.steps, strict=True)):
        differences = changed(one.model_dump(), other.model_dump())
        if index != wrong:
            assert not differences, (case.id, index, differences)
            continue
        assert differences, case.id
        assert differences <= JUDGED[case.rule], (case.id, differences)


def test_a_twin_differs_only_in_the_step_judged():
    for case in CASES:
        if case.twin is not None:
            check_twin(case)


def test_a_twin_that_differs_elsewhere_is_refuted():
    case = next(case for case in CASES if case.id.startswith("LAY-01/unfit"))
    check_twin(case)
    steps = (*case.twin.steps[:-1], case.steps[1])
    for change in ({"steps": steps}, {"steps": case.steps}, {"topology": Topology(tp=8)}):
        with pytest.raises(AssertionError):
            check_twin(case.model_copy(update={"twin": case.twin.model_copy(update=change)}))


def test_a_model_of_a_case_survives_json():
    for case in CASES[::97]:
        assert Case.model_validate_json(case.model_dump_json()) == case


# --- determinism


def digest(cases):
    total = hashlib.sha256()
    for case in cases:
        total.update(case.model_dump_json().encode())
    return total.hexdigest()


AGAIN = """
import hashlib
from routeproof_conformance.cases import all_cases
total = hashlib.sha256()
for case in all_cases():
    total.update(case.model_dump_json().encode())
print(total.hexdigest())
"""


def test_two_constructions_are_equal():
    assert all_cases.__wrapped__() == CASES


def test_nothing_depends_on_the_hash_seed():
    seeds = ("0", "1")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", AGAIN],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in seeds
    ]
    printed = [process.communicate(timeout=60)[0].strip() for process in running]
    assert printed == [digest(CASES)] * len(seeds)


# --- selection


def ids(**wanted):
    return [case.id for case in select(**wanted)]


def test_select_takes_brackets_literally_and_two_wild_characters():
    whole = "LAY-02/six-tokens[tp=2,dp=1,N=6]"
    assert ids(case=whole) == [whole]
    assert ids(case="LAY-02/six-tokens[[]tp=2,dp=1,N=6]") == []
    assert ids(case="LAY-02/six-token[st][[tp=2,dp=1,N=6]") == []
    assert ids(case="LAY-02/six-tokens") == []
    assert ids(case="LAY-02/six-tokens*") == [whole]
    assert ids(case="LAY-02/six-tokens[tp=?,dp=1,N=6]") == [whole]
    assert ids(case="LAY-02/six-tokens[tp=??,dp=1,N=6]") == []
    assert ids(case="lay-02/six-tokens*") == []
    assert ids(case="*[tp=8,dp=3,*]") == [
        case.id for case in CASES if case.topology == Topology(tp=8, dp=3) and not case.id.endswith("dp=3]")
    ]
    assert ids() == [case.id for case in CASES]


def test_select_by_rule_group_and_topology():
    assert ids(rule="BUF-01") == [case.id for case in CASES if "BUF-01" in case.rules]
    assert (
        ids(rule="BUF")
        == ids(rule="BUF-*")
        == [case.id for case in CASES if any(rule.startswith("BUF") for rule in case.rules)]
    )
    assert ids(rule="BUF-99") == []
    assert ids(topologies=(Topology(tp=2, dp=2),)) == [case.id for case in at_topology("tp2dp2")]
    assert ids(topologies=()) == []
    both = ids(rule="LAY-08", topologies=(Topology(tp=4, dp=2),), case="LAY-08/uneven*")
    assert both == ["LAY-08/uneven[tp=4,dp=2,T=5+3,sizes=4+4+4]"]
