"""Files of published wheels: pip is the real one on a folder of small wheels, or a fake."""

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from routeproof_conformance.engines import fetch as fetch_module
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.fetch import cached, fetch

FILE = "toy/capture.py"
OTHER = "toy/other.py"
CONTENT = b"answer = 42\n"
Pip = Callable[[tuple[str, ...], float], subprocess.CompletedProcess[str]]


def make_wheel(folder: Path, version: str = "1.0", files: dict[str, bytes] | None = None) -> Path:
    path = folder / f"toy-{version}-py3-none-any.whl"
    info = f"toy-{version}.dist-info"
    content = {
        **({FILE: CONTENT, OTHER: b"pass\n"} if files is None else files),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: toy\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in content) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**content, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROUTEPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real pip, which sees the wheels of one folder and nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def use_pip(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pip], None]:
    return lambda pip: monkeypatch.setattr(fetch_module, "_run_pip", pip)


def failing(log: str) -> Pip:
    return lambda arguments, timeout: subprocess.CompletedProcess(arguments, 1, "", log)  # noqa: ARG005


def target(arguments: tuple[str, ...]) -> Path:
    return Path(arguments[arguments.index("-d") + 1])


def test_fetch_keeps_the_named_file_and_its_digest_but_no_wheel(cache: Path, index: Path) -> None:
    wheel = make_wheel(index)
    got = fetch("toy", "1.0", (FILE,))
    assert got.path(FILE) == cache / "toy-1.0" / FILE
    assert got.path(FILE).read_bytes() == CONTENT
    assert got.digests == {FILE: hashlib.sha256(CONTENT).hexdigest()}
    assert (got.wheel, got.wheel_sha256) == (wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest())
    left = sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())
    assert left == [f"toy-1.0/{name}" for name in ("manifest.json", FILE)]
    manifest = json.loads((cache / "toy-1.0" / "manifest.json").read_text())
    assert manifest == {
        "name": "toy",
        "version": "1.0",
        "wheel": wheel.name,
        "wheel_sha256": got.wheel_sha256,
        "files": got.digests,
    }


def test_cached_gives_what_was_fetched(cache: Path, index: Path) -> None:
    make_wheel(index)
    got = fetch("toy", "1.0", (FILE,))
    assert cached("toy", "1.0", (FILE,)) == got
    assert got.root == cache / "toy-1.0"


@pytest.mark.usefixtures("cache")
def test_a_second_fetch_adds_a_file_and_keeps_the_first(index: Path) -> None:
    make_wheel(index)
    fetch("toy", "1.0", (FILE,))
    fetch("toy", "1.0", (OTHER,))
    assert set(cached("toy", "1.0", (FILE, OTHER)).digests) == {FILE, OTHER}


@pytest.mark.usefixtures("cache")
def test_optional_files_are_kept_where_the_wheel_has_them(index: Path) -> None:
    make_wheel(index)
    assert set(fetch("toy", "1.0", (FILE,), (FILE, OTHER, "toy/none.py")).digests) == {FILE, OTHER}
    with pytest.raises(EngineError, match="no path inside a wheel"):
        fetch("toy", "1.0", (FILE,), ("../other.py",))


@pytest.mark.usefixtures("cache")
def test_not_fetched_names_the_command() -> None:
    with pytest.raises(EngineError, match=r"`routeproof engines fetch toy==1\.0`"):
        cached("toy", "1.0", (FILE,))


@pytest.mark.usefixtures("cache")
def test_a_file_that_was_not_fetched_names_the_command(index: Path) -> None:
    make_wheel(index)
    fetch("toy", "1.0", (FILE,))
    with pytest.raises(EngineError, match=r"has no toy/other\.py: run `routeproof engines fetch"):
        cached("toy", "1.0", (OTHER,))


def test_a_changed_file_is_refused_and_fetched_again(cache: Path, index: Path) -> None:
    make_wheel(index)
    fetch("toy", "1.0", (FILE,))
    (cache / "toy-1.0" / FILE).write_bytes(b"answer = 43\n")
    with pytest.raises(EngineError) as caught:
        cached("toy", "1.0", (FILE,))
    message = str(caught.value)
    assert str(cache / "toy-1.0" / FILE) in message
    assert hashlib.sha256(b"answer = 43\n").hexdigest() in message
    assert hashlib.sha256(CONTENT).hexdigest() in message
    assert "`routeproof engines fetch toy==1.0`" in message
    assert fetch("toy", "1.0", (FILE,)).path(FILE).read_bytes() == CONTENT


@pytest.mark.parametrize("damage", ["{", "[]", '{"files": {}}'])
def test_a_damaged_manifest_is_refused_and_fetched_again(cache: Path, index: Path, damage: str) -> None:
    make_wheel(index)
    fetch("toy", "1.0", (FILE,))
    (cache / "toy-1.0" / "manifest.json").write_text(damage)
    with pytest.raises(EngineError, match=r"damaged .*run `routeproof engines fetch"):
        cached("toy", "1.0", (FILE,))
    fetch("toy", "1.0", (FILE,))
    assert cached("toy", "1.0", (FILE,)).path(FILE).read_bytes() == CONTENT


def test_a_lost_file_is_reported(cache: Path, index: Path) -> None:
    make_wheel(index)
    fetch("toy", "1.0", (FILE,))
    (cache / "toy-1.0" / FILE).unlink()
    with pytest.raises(EngineError, match=r"cannot be read .*run `routeproof engines fetch"):
        cached("toy", "1.0", (FILE,))


def test_a_wheel_without_the_file_says_which_and_leaves_nothing(cache: Path, index: Path) -> None:
    wheel = make_wheel(index, files={OTHER: b""})
    with pytest.raises(EngineError) as caught:
        fetch("toy", "1.0", (FILE, OTHER))
    assert str(caught.value) == f"{wheel.name} has no {FILE}"
    assert list(cache.iterdir()) == []


def test_a_failed_fetch_leaves_the_old_files(cache: Path, index: Path) -> None:
    make_wheel(index)
    before = fetch("toy", "1.0", (FILE,))
    make_wheel(index, files={OTHER: b""})
    with pytest.raises(EngineError):
        fetch("toy", "1.0", (FILE,))
    assert cached("toy", "1.0", (FILE,)) == before
    assert [path.name for path in cache.iterdir()] == ["toy-1.0"]


def test_a_fetch_that_stops_before_the_swap_leaves_the_old_files(
    cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(index)
    before = fetch("toy", "1.0", (FILE,))
    rename = Path.rename

    def stop(self: Path, target: Path) -> Path:
        if self.name == "staged":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        fetch("toy", "1.0", (FILE,))
    assert cached("toy", "1.0", (FILE,)) == before
    assert [path.name for path in cache.iterdir()] == ["toy-1.0"]


@pytest.mark.usefixtures("cache")
def test_an_unknown_version_names_those_that_there_are(index: Path) -> None:
    make_wheel(index)
    with pytest.raises(EngineError, match=r"^toy==2\.0 has no wheel .*newest there: 1\.0\)$"):
        fetch("toy", "2.0", (FILE,))


@pytest.mark.usefixtures("cache", "index")
def test_an_unknown_package() -> None:
    with pytest.raises(EngineError, match=r"^the package index has no wheel of toy, in any version"):
        fetch("toy", "2.0", (FILE,))


@pytest.mark.usefixtures("cache", "index")
def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(EngineError, match=r"^no package index could be reached to fetch toy==1\.0"):
        fetch("toy", "1.0", (FILE,))


@pytest.mark.usefixtures("cache")
def test_no_pip(use_pip: Callable[[Pip], None]) -> None:
    use_pip(failing(f"{sys.executable}: No module named pip"))
    with pytest.raises(EngineError, match=r"has no pip, .*ensurepip"):
        fetch("toy", "1.0", (FILE,))


@pytest.mark.usefixtures("cache")
def test_pip_that_hangs(use_pip: Callable[[Pip], None]) -> None:
    def hang(arguments: tuple[str, ...], timeout: float) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(arguments, timeout)

    use_pip(hang)
    with pytest.raises(EngineError, match=r"did not download toy==1\.0 in 900 s"):
        fetch("toy", "1.0", (FILE,))


@pytest.mark.usefixtures("cache")
def test_another_failure_of_pip_is_passed_on(use_pip: Callable[[Pip], None]) -> None:
    use_pip(failing("WARNING: hm\nERROR: no space left\n"))
    with pytest.raises(EngineError, match=r"^pip could not download toy==1\.0: no space left$"):
        fetch("toy", "1.0", (FILE,))


@pytest.mark.usefixtures("cache")
def test_without_a_wheel_for_this_platform_the_linux_one_is_taken(use_pip: Callable[[Pip], None]) -> None:
    calls = []

    def pip(arguments: tuple[str, ...], timeout: float) -> subprocess.CompletedProcess[str]:
        calls.append(arguments)
        if "--platform" not in arguments:
            return failing("ERROR: ... (from versions: none)")(arguments, timeout)
        make_wheel(target(arguments))
        return subprocess.CompletedProcess(arguments, 0, "", "")

    use_pip(pip)
    assert fetch("toy", "1.0", (FILE,)).path(FILE).read_bytes() == CONTENT
    assert len(calls) == 2
    assert calls[1][:2] == ("download", "--no-deps")
    for words in (
        ("--platform", "manylinux_2_28_x86_64"),
        ("--python-version", "3.12"),
        ("--implementation", "cp"),
    ):
        assert words in list(zip(calls[1], calls[1][1:], strict=False))


def test_a_broken_wheel(cache: Path, use_pip: Callable[[Pip], None]) -> None:
    def pip(arguments: tuple[str, ...], timeout: float) -> subprocess.CompletedProcess[str]:  # noqa: ARG001
        (target(arguments) / "toy-1.0-py3-none-any.whl").write_bytes(b"PK, or not")
        return subprocess.CompletedProcess(arguments, 0, "", "")

    use_pip(pip)
    with pytest.raises(
        EngineError, match=r"^toy-1\.0-py3-none-any\.whl, as downloaded, is no readable wheel"
    ):
        fetch("toy", "1.0", (FILE,))
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("cache")
def test_pip_that_leaves_no_wheel(use_pip: Callable[[Pip], None]) -> None:
    use_pip(lambda arguments, _timeout: subprocess.CompletedProcess(arguments, 0, "", ""))
    with pytest.raises(EngineError, match=r"left no single wheel of toy==1\.0, but nothing"):
        fetch("toy", "1.0", (FILE,))


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.parent.write_text("a file where the folder should be")
    with pytest.raises(EngineError, match=r"cannot write toy 1\.0 into the cache"):
        fetch("toy", "1.0", (FILE,))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("name", "version", "files"),
    [
        ("../toy", "1.0", (FILE,)),
        ("--toy", "1.0", (FILE,)),
        ("toy", "../1.0", (FILE,)),
        ("toy", "", (FILE,)),
        ("toy", "1.0", ()),
        ("toy", "1.0", ("../escape.py",)),
        ("toy", "1.0", ("/etc/passwd",)),
        ("toy", "1.0", ("manifest.json",)),
    ],
)
def test_what_could_leave_the_cache_is_refused(name: str, version: str, files: tuple[str, ...]) -> None:
    with pytest.raises(EngineError):
        fetch(name, version, files)
    with pytest.raises(EngineError):
        cached(name, version, files)
