"""The registry is the catalogue, and spec/README.md is rendered from it."""

import re
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from routeproof_conformance import spec_page
from routeproof_spec import CAPABILITIES, CORE_RULES, Level, Surface
from routeproof_spec.rules import GROUPS, RULES, find, index
from typer.testing import CliRunner

PAGE = Path(__file__).parents[1] / "spec" / "README.md"

CATALOGUE = {
    "LAY": [
        "LAY-01", "LAY-02", "LAY-03", "LAY-04", "LAY-05", "LAY-06",
        "LAY-07", "LAY-08", "LAY-09", "LAY-10", "LAY-11", "LAY-12",
    ],
    "COL": ["COL-01", "COL-02", "COL-03", "COL-04", "COL-05", "COL-06", "COL-07"],
    "BUF": [
        "BUF-01", "BUF-02", "BUF-03", "BUF-04", "BUF-05",
        "BUF-06", "BUF-07", "BUF-08", "BUF-09", "BUF-10",
    ],
    "SNP": ["SNP-01", "SNP-02", "SNP-03", "SNP-04"],
    "IDS": ["IDS-01", "IDS-02", "IDS-03", "IDS-04", "IDS-05"],
    "DEL": [
        "DEL-01", "DEL-02", "DEL-03", "DEL-04", "DEL-05", "DEL-06",
        "DEL-07", "DEL-08", "DEL-09", "DEL-10", "DEL-11", "DEL-12",
    ],
    "WIR": ["WIR-01", "WIR-02", "WIR-03", "WIR-04", "WIR-05", "WIR-06"],
    "GAT": ["GAT-01", "GAT-02", "GAT-03", "GAT-04"],
}  # fmt: skip
IDS = list(chain.from_iterable(CATALOGUE.values()))

SHOULD = {"LAY-10", "COL-04"}
PROFILE = {"LAY-09", "BUF-08", "DEL-05", "DEL-11", "WIR-05", "WIR-06"}

CAPABILITY = {
    "LAY-10": "declared-layouts",
    "BUF-05": "microbatches",
    "BUF-06": "draft-model",
    "BUF-07": "graph-replay",
    "BUF-10": "compact-replay",
    "IDS-01": "expert-load-balancing",
    "IDS-04": "shared-experts",
    "DEL-02": "chunked-prefill",
    "DEL-03": "prefix-cache",
    "DEL-04": "speculative-decoding",
    "DEL-05": "preemption",
    "DEL-09": "start-offset",
    "DEL-10": "streaming",
    "DEL-11": "disaggregated-prefill",
    "DEL-12": "cache-reset",
}

SOURCE = re.compile(
    r"[\w-]+ #\d+"  # a public issue or pull request
    r"|[\w-]+( up to)?( \d[\d.]*\d)?(: .+)?"  # an engine or a reader, its version, what it does
    r"|derived: .+"  # follows from other rules or from enumeration
)

GROUP_SURFACE = {
    "LAY": Surface.CAPTURER,
    "COL": Surface.CAPTURER,
    "BUF": Surface.CAPTURER,
    "SNP": Surface.CAPTURER,
    "DEL": Surface.DELIVERY,
    "WIR": Surface.SERVER,
}
RULE_SURFACES = {
    "LAY-07": {Surface.CAPTURER, Surface.CONTEXT_BUILDER},
    "LAY-11": {Surface.CONTEXT_BUILDER},
    "BUF-06": {Surface.BINDER},
    "IDS-01": {Surface.ROUTER},
    "IDS-02": {Surface.CAPTURER},
    "IDS-03": {Surface.ROUTER},
    "IDS-04": {Surface.ROUTER},
    "IDS-05": {Surface.CAPTURER},
    "GAT-01": {Surface.SERVER},
    "GAT-02": {Surface.BINDER},
    "GAT-03": {Surface.CAPTURER},
    "GAT-04": {Surface.SERVER},
}


def test_the_registry_is_the_catalogue():
    assert list(RULES) == IDS
    assert list(GROUPS) == list(CATALOGUE)


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_rule(rule):
    assert RULES[rule.id] is rule
    level = Level.SHOULD if rule.id in SHOULD else Level.PROFILE if rule.id in PROFILE else Level.MUST
    assert rule.level is level
    assert rule.capability == CAPABILITY.get(rule.id)
    assert rule.capability is None or rule.capability in CAPABILITIES
    assert set(rule.surfaces) == (RULE_SURFACES.get(rule.id) or {GROUP_SURFACE[rule.group]})
    assert len(set(rule.surfaces)) == len(rule.surfaces)


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_wording(rule):
    if rule.level is Level.MUST:
        assert "MUST" in rule.statement
    if rule.level is Level.SHOULD:
        assert "SHOULD" in rule.statement
        assert "MUST" not in rule.statement
    if rule.level is Level.PROFILE:
        assert re.search(r"\bdeclare", rule.statement)
    assert "|" not in rule.title
    for text in (rule.title, rule.statement, rule.rationale, *rule.sources):
        assert text == " ".join(text.split())
        assert text
    for text in (rule.statement, rule.rationale):
        assert text.rstrip(")").endswith(".")
    for source in rule.sources:
        assert SOURCE.fullmatch(source), source


def test_texts_are_distinct():
    for field in ("title", "statement", "rationale"):
        counts = Counter(getattr(rule, field) for rule in RULES.values())
        assert counts.most_common(1)[0][1] == 1


def test_core_rules_exist_and_bind_every_capturer():
    assert set(RULES) >= CORE_RULES
    for rule in map(RULES.__getitem__, CORE_RULES):
        assert rule.level is Level.MUST
        assert rule.capability is None
        assert rule.surfaces == (Surface.CAPTURER,)


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [
        ("LAY-02", ["LAY-02"]),
        ("lay-02", ["LAY-02"]),
        ("LAY-*", CATALOGUE["LAY"]),
        ("COL", CATALOGUE["COL"]),
        ("gat", CATALOGUE["GAT"]),
        ("*-01", [ids[0] for ids in CATALOGUE.values()]),
        ("BUF-0[1-3]", ["BUF-01", "BUF-02", "BUF-03"]),
        ("DEL-1?", ["DEL-10", "DEL-11", "DEL-12"]),
        ("*", IDS),
        ("LA", []),
        ("LAY-2", []),
        ("", []),
    ],
)
def test_find(pattern, ids):
    assert [rule.id for rule in find(pattern)] == ids


def test_an_id_that_occurs_twice_is_refused():
    first, second = find("LAY-0[12]")
    assert list(index([first, second])) == ["LAY-01", "LAY-02"]
    with pytest.raises(ValueError, match=r"LAY-01 occurs twice"):
        index([first, second, second.model_copy(update={"id": "LAY-01"})])


def test_the_page_is_rendered_from_the_registry():
    text = PAGE.read_text(encoding="utf-8")
    assert spec_page.updated(text) == text


def test_the_page_has_one_anchor_per_rule_and_no_dead_link():
    text = PAGE.read_text(encoding="utf-8")
    anchors = re.findall(r'<a id="([^"]+)"></a>', text)
    assert anchors == [rule_id.lower() for rule_id in IDS]
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings | set(anchors)


def test_the_page_says_everything_of_every_rule():
    parts = re.split(r'<a id="[^"]+"></a>', PAGE.read_text(encoding="utf-8"))[1:]
    for rule, part in zip(RULES.values(), parts, strict=True):
        assert part.startswith(f"\n\n#### {rule.id} {rule.title}\n\n**{rule.level}** · ")
        for text in (rule.statement, rule.rationale, *rule.sources, *rule.surfaces, rule.capability or ""):
            assert text in part
        assert ("cannot be declined" in part) == (rule.id in CORE_RULES)
        assert "&" not in part


def test_the_page_names_rules_that_exist():
    named = set(re.findall(r"\b[A-Z]{3}-\d\d\b", PAGE.read_text(encoding="utf-8")))
    assert named == set(RULES)


def test_only_the_part_between_the_markers_changes():
    text = f"before\n{spec_page.BEGIN}\nold\n{spec_page.END}\nafter\n"
    new = spec_page.updated(text)
    assert new == f"before\n{spec_page.BEGIN}\n{spec_page.render()}{spec_page.END}\nafter\n"
    assert spec_page.updated(new) == new


@pytest.mark.parametrize(
    "text",
    [
        "no marker",
        f"{spec_page.BEGIN}\n",
        f"{spec_page.END}\n",
        f"{spec_page.END}\n{spec_page.BEGIN}\n",
        f"{spec_page.BEGIN}\n{spec_page.BEGIN}\n{spec_page.END}\n",
    ],
)
def test_a_page_without_proper_markers_is_refused(text):
    with pytest.raises(ValueError, match="marker"):
        spec_page.updated(text)


def test_the_command_rewrites_a_file(tmp_path):
    import typer

    app = typer.Typer()
    app.command()(spec_page.main)
    page = tmp_path / "page.md"
    page.write_text(f"ä\n{spec_page.BEGIN}\n{spec_page.END}\n", encoding="utf-8")
    result = CliRunner().invoke(app, [str(page)])
    assert result.exit_code == 0, result.output
    assert page.read_text(encoding="utf-8") == f"ä\n{spec_page.BEGIN}\n{spec_page.render()}{spec_page.END}\n"
    assert CliRunner().invoke(app, [str(tmp_path / "absent.md")]).exit_code == 2
