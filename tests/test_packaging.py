"""The distribution: what imports what, what is forbidden in it, how large files are, what is shipped."""

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {name: ROOT / name / f"routeproof_{name}" for name in ("spec", "reference", "impl", "conformance")}
ALLOWED = {
    "spec": {"pydantic"},
    "reference": {"routeproof_spec", "numpy"},
    "impl": {"routeproof_spec", "torch", "numpy"},
}
"""What each package may import beside itself and the standard library; conformance may import all."""
PROVERS = {"z3", "crosshair", "hypothesis"}
"""Only under reference's proofs/."""
LINES = {"spec": 300, "reference": 300, "impl": 400, "conformance": 400}
HEAVY = {"torch", "vllm", "sglang"}
"""Imported only where needed: an engine without torch must be testable without it."""


def files(name):
    found = sorted(PACKAGES[name].rglob("*.py"))
    assert found
    return found


@cache
def tree(path):
    return ast.parse(path.read_text("utf-8"), str(path))


def imported(node):
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {"." if node.level else node.module.split(".")[0]}
    return set()


def at_import(node):
    """Nodes that run when the module is imported: not the bodies of functions, nor of TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from at_import(child)


def named(nodes):
    return set().union(*(imported(node) for node in nodes))


# --- the lint: each check gives what is wrong with one module


def foreign(name, where, module):
    """Imports that the package may not have, in functions too."""
    allowed = ALLOWED[name] | {f"routeproof_{name}"} | sys.stdlib_module_names
    if name == "reference" and "proofs" in where.parts:
        allowed = allowed | PROVERS
    return named(ast.walk(module)) - allowed


def heavy(_name, _where, module):
    """Engines and torch, imported with the module."""
    return named(at_import(module)) & HEAVY


def asserts(_name, _where, module):
    """Checks that `python -O` drops."""
    return {node.lineno for node in ast.walk(module) if isinstance(node, ast.Assert)}


def idle(handler):
    return all(isinstance(it, ast.Pass) or ast.unparse(it) == "..." for it in handler.body)


def swallowed(_name, _where, module):
    """Handlers that catch everything unnamed, and those that do nothing (unless an `else` is the point)."""
    return {
        handler.lineno
        for node in ast.walk(module)
        if isinstance(node, ast.Try)
        for handler in node.handlers
        if handler.type is None
        or (
            idle(handler) and (not node.orelse or ast.unparse(handler.type) in ("Exception", "BaseException"))
        )
    }


LINT = {
    foreign: ("spec", "reference", "impl"),
    heavy: ("spec", "reference", "conformance"),
    asserts: tuple(PACKAGES),
    swallowed: tuple(PACKAGES),
}


@pytest.mark.parametrize(("check", "name"), [(check, name) for check in LINT for name in LINT[check]])
def test_lint(check, name):
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in files(name)
        if (found := check(name, path.relative_to(ROOT), tree(path)))
    }
    assert wrong == {}, f"{check.__doc__} {wrong}"


PLANTED = [
    (foreign, "spec", "a.py", "import numpy"),
    (foreign, "spec", "a.py", "def f():\n    from routeproof_reference import plan"),
    (foreign, "reference", "a.py", "import torch.distributed as dist"),
    (foreign, "reference", "a.py", "import z3"),
    (foreign, "reference", "a.py", "import pydantic"),
    (foreign, "impl", "a.py", "from routeproof_reference.resolve import resolve"),
    (foreign, "impl", "a.py", "from routeproof_conformance import cases"),
    (foreign, "impl", "a.py", "from . import layout"),
    (heavy, "conformance", "a.py", "import torch"),
    (heavy, "conformance", "a.py", "try:\n    from torch import nn\nexcept ImportError:\n    nn = None"),
    (heavy, "conformance", "a.py", "class A:\n    import vllm"),
    (asserts, "impl", "a.py", "def f(x):\n    assert x"),
    (swallowed, "impl", "a.py", "try:\n    f()\nexcept ValueError:\n    pass"),
    (swallowed, "impl", "a.py", "try:\n    f()\nexcept Exception:\n    ..."),
    (swallowed, "impl", "a.py", "try:\n    f()\nexcept:\n    g()"),
    (swallowed, "impl", "a.py", "try:\n    f()\nexcept Exception:\n    pass\nelse:\n    g()"),
]
HARMLESS = [
    (foreign, "reference", "proofs/a.py", "import z3"),
    (
        foreign,
        "impl",
        "a.py",
        "import torch\nimport numpy\nimport os.path\nfrom routeproof_impl import layout",
    ),
    (heavy, "conformance", "a.py", "def f():\n    import torch"),
    (heavy, "conformance", "a.py", "if TYPE_CHECKING:\n    import torch"),
    (swallowed, "impl", "a.py", "try:\n    f()\nexcept ValueError:\n    g()"),
    (swallowed, "impl", "a.py", "try:\n    f()\nexcept KeyError:\n    pass\nelse:\n    g()"),
]


@pytest.mark.parametrize(("check", "name", "where", "source"), PLANTED)
def test_the_lint_sees_what_is_planted(check, name, where, source):
    assert check(name, Path(where), ast.parse(source))


@pytest.mark.parametrize(("check", "name", "where", "source"), HARMLESS)
def test_the_lint_leaves_the_rest_alone(check, name, where, source):
    assert not check(name, Path(where), ast.parse(source))


@pytest.mark.parametrize("name", PACKAGES)
def test_files_are_short(name):
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in files(name)}
    assert {path: length for path, length in lengths.items() if length > LINES[name]} == {}


# --- what can be imported


def python(code, cwd):
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_only_the_prefixed_names_can_be_imported(tmp_path):
    code = """
import importlib, json
found = {}
for name in ("spec", "reference", "impl", "conformance"):
    for full in (name, "routeproof_" + name):
        try:
            importlib.import_module(full)
            found[full] = True
        except ModuleNotFoundError as error:
            found[full] = error.name != full
print(json.dumps(found))
"""
    want = dict.fromkeys(PACKAGES, False) | {f"routeproof_{name}": True for name in PACKAGES}
    assert python(code, tmp_path) == want


def test_torch_is_not_loaded_until_it_is_needed(tmp_path):
    code = """
import json, sys
import routeproof_spec, routeproof_reference, routeproof_conformance.cli
from routeproof_conformance.cases import all_cases
all_cases()
print(json.dumps(sorted({"torch", "vllm", "sglang", "routeproof_impl"} & set(sys.modules))))
"""
    assert python(code, tmp_path) == []


# --- what is shipped


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Names in the built wheel."""
    pytest.importorskip("build", reason="needs the extra dev")
    pytest.importorskip("hatchling", reason="needs the extra dev")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("routeproof-*-py3-none-any.whl")
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def test_the_wheel_has_the_four_packages_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        path.name for path in PACKAGES.values()
    }
    assert len([top for top in tops if top.endswith(".dist-info")]) == 1
    for path in PACKAGES.values():
        assert f"{path.name}/py.typed" in wheel
        assert f"{path.name}/__init__.py" in wheel
    shipped = {name for name in wheel if name.endswith(".py")}
    for path in tracked():
        top, _, inside = path.partition("/")
        if top in PACKAGES and inside.endswith(".py"):
            assert inside in shipped


def test_the_wheel_has_the_templates_and_the_license_and_no_tests(wheel):
    assert "routeproof_conformance/templates/spec_rules.md.j2" in wheel
    assert any(re.fullmatch(r"routeproof-[\d.]+\.dist-info/licenses/LICENSE", name) for name in wheel)
    assert any(name.endswith(".dist-info/entry_points.txt") for name in wheel)
    assert [
        name for name in wheel if re.search(r"(^|/)(tests?|benchmarks|docs)/|(^|/)test_|\.pyc$", name)
    ] == []


# --- the repository


@cache
def tracked():
    """Files that git knows, as far as they are there."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


ABSOLUTE = re.compile(
    r"(?<![\w.}$<>*-])(?:"
    + "|".join(f"/{top}" for top in ("work", "root", "home", "Users", "tmp"))
    + r")(?:/|\b)"
)
"""Paths of somebody's machine: `/path/to/...` in prose and "$folder/work" in a script are none."""


def test_no_file_names_a_path_of_some_machine():
    found = {}
    for name in tracked():
        text = (ROOT / name).read_bytes().decode("utf-8", "replace")
        lines = [number for number, line in enumerate(text.splitlines(), 1) if ABSOLUTE.search(line)]
        if lines:
            found[name] = lines
    assert found == {}


def test_a_path_of_some_machine_is_seen():
    for top in ("work", "root", "home", "Users", "tmp"):
        for line in (f"see /{top}/someone/file", f"'/{top}/x'", f"cd /{top}"):
            assert ABSOLUTE.search(line), line
    for line in (
        'mkdir "$empty/work"',
        "a/work/b",
        "https://example.org/home/x",
        "/workers/1",
        "PYTHON=/path/to/python3",
    ):
        assert not ABSOLUTE.search(line), line
