"""Files of published wheels, in the user's cache.

`fetch` lets pip download a wheel, keeps the few named files and their digests, and
drops the wheel. `cached` gives them again, after comparing the digests.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from platformdirs import user_cache_path

from routeproof_conformance.engines.errors import EngineError

CACHE_VARIABLE = "ROUTEPROOF_CACHE"
TIMEOUT = 900.0
"""Seconds that one call of pip may take."""

_MANIFEST = "manifest.json"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]*")
_FOREIGN = (
    *(
        word
        for tag in ("manylinux_2_28", "manylinux_2_31", "manylinux2014", "manylinux1")
        for word in ("--platform", f"{tag}_x86_64")
    ),
    *("--python-version", "3.12", "--implementation", "cp"),
)
_OFFLINE = re.compile(
    r"connection broken by|NewConnectionError|Failed to establish a new connection|name resolution"
    r"|ConnectTimeout|ReadTimeout|Max retries exceeded|ProxyError|SSLError",
)


@dataclass(frozen=True)
class FetchedFiles:
    """Files of one wheel, on disk, as their digests say."""

    name: str
    version: str
    wheel: str
    wheel_sha256: str
    root: Path
    digests: dict[str, str]
    """sha256 per file, by its path inside the wheel."""

    def path(self, file: str) -> Path:
        """Give where a file of the wheel lies."""
        return self.root / file


def cache_root() -> Path:
    """Give the folder that holds one folder per engine and version."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return (Path(chosen) if chosen else user_cache_path("routeproof")) / "engines"


def fetch(name: str, version: str, files: tuple[str, ...], optional: tuple[str, ...] = ()) -> FetchedFiles:
    """Download a wheel, put `files` of it into the cache in place of what was there, and give them.

    Of `optional`, those that the wheel has are put and given too.
    """
    folder = _folder(name, version)
    _check_files((*files, *optional))
    root = folder.parent
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as download:
            wheel = _download(name, version, Path(download))
            more = dict.fromkeys((*optional, *_known_files(folder)))
            wanted = (*files, *(file for file in more if file not in files))
            staged = Path(download) / "staged"
            _extract(wheel, staged, name, version, wanted, required=frozenset(files))
            _swap(staged, folder)
    except OSError as error:
        raise EngineError(f"cannot write {name} {version} into the cache {root}: {error}") from error
    beside = [file for file in optional if file not in files and (folder / file).is_file()]
    return cached(name, version, (*files, *beside))


def cached(name: str, version: str, files: tuple[str, ...]) -> FetchedFiles:
    """Give files that were fetched earlier; refuse one whose digest is not the recorded one."""
    folder = _folder(name, version)
    _check_files(files)
    again = f"run `{fetch_command(name, version)}`"
    if not folder.is_dir():
        raise EngineError(f"{name} {version} is not fetched (looked in {folder}): {again}")
    manifest = _read_manifest(folder)
    if manifest is None:
        raise EngineError(f"the cache of {name} {version} is damaged ({folder / _MANIFEST}): {again}")
    digests: dict[str, str] = manifest["files"]
    for file in files:
        if file not in digests:
            raise EngineError(f"the cache of {name} {version} has no {file}: {again}")
        try:
            actual = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        except OSError as error:
            raise EngineError(f"the cached {folder / file} cannot be read ({error}): {again}") from error
        if actual != digests[file]:
            raise EngineError(
                f"{folder / file} is not the file that was fetched: sha256 {actual}, "
                f"recorded {digests[file]}; to fetch it again, {again}"
            )
    return FetchedFiles(
        name=name,
        version=version,
        wheel=manifest["wheel"],
        wheel_sha256=manifest["wheel_sha256"],
        root=folder,
        digests={file: digests[file] for file in files},
    )


def fetch_command(name: str, version: str) -> str:
    """Spell the command that fetches this version."""
    return f"routeproof engines fetch {name}=={version}"


def _folder(name: str, version: str) -> Path:
    if not _NAME.fullmatch(name):
        raise EngineError(f"{name!r} is no name of a package")
    if not _VERSION.fullmatch(version):
        raise EngineError(f"{version!r} is no version (of {name})")
    return cache_root() / f"{name}-{version}"


def _check_files(files: tuple[str, ...]) -> None:
    if not files:
        raise EngineError("no file of the wheel is named")
    for file in files:
        parts = PurePosixPath(file)
        if parts.is_absolute() or ".." in parts.parts or file != str(parts) or file == _MANIFEST:
            raise EngineError(f"{file!r} is no path inside a wheel")


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    fields = {"name": str, "version": str, "wheel": str, "wheel_sha256": str, "files": dict}
    if not isinstance(manifest, dict) or not all(isinstance(manifest.get(k), t) for k, t in fields.items()):
        return None
    return manifest


def _known_files(folder: Path) -> Iterator[str]:
    manifest = _read_manifest(folder)
    for file in () if manifest is None else manifest["files"]:
        try:
            _check_files((file,))
        except EngineError:
            continue
        yield file


def _run_pip(arguments: tuple[str, ...], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run pip of this interpreter; the one place where this module starts a process."""
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(  # noqa: S603 (own interpreter, checked arguments)
        command, capture_output=True, text=True, errors="replace", check=False, timeout=timeout
    )


def _download(name: str, version: str, into: Path) -> Path:
    options = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input")
    quiet = ("--disable-pip-version-check", "--progress-bar", "off", "-d", str(into))
    log = ""
    for platform in ((), _FOREIGN):
        arguments = ("download", *options, *quiet, *platform, f"{name}=={version}")
        try:
            done = _run_pip(arguments, TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"pip did not download {name}=={version} in {TIMEOUT:.0f} s") from error
        if done.returncode == 0:
            wheels = sorted(into.glob("*.whl"))
            if len(wheels) != 1:
                found = ", ".join(sorted(path.name for path in into.iterdir())) or "nothing"
                raise EngineError(f"pip left no single wheel of {name}=={version}, but {found}")
            return wheels[0]
        log = f"{done.stderr}\n{done.stdout}"
        if "No module named pip" in log:
            raise EngineError(
                f"{sys.executable} has no pip, which fetches {name}=={version}: "
                f"install it (`{sys.executable} -m ensurepip`)"
            )
        if _OFFLINE.search(log):
            raise EngineError(
                f"no package index could be reached to fetch {name}=={version}: {_last_error(log)}"
            )
    raise EngineError(_no_wheel(name, version, log))


def _last_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return ([*lines[-1:], *errors] or ["pip said nothing"])[-1].removeprefix("ERROR: ")[:300]


def _no_wheel(name: str, version: str, log: str) -> str:
    listed = re.search(r"\(from versions: ([^)]*)\)", log)
    versions = listed[1].split(", ") if listed and listed[1] != "none" else []
    if versions:
        newest = ", ".join(versions[-5:])
        return f"{name}=={version} has no wheel on the package index (its newest there: {newest})"
    if listed:
        return f"the package index has no wheel of {name}, in any version, for this platform or Linux x86-64"
    return f"pip could not download {name}=={version}: {_last_error(log)}"


def _extract(
    wheel: Path, into: Path, name: str, version: str, files: tuple[str, ...], required: frozenset[str]
) -> None:
    digests: dict[str, str] = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            present = set(archive.namelist())
            missing = sorted(required - present)
            if missing:
                raise EngineError(f"{wheel.name} has no {', '.join(missing)}")
            for file in files:
                if file in present:
                    content = archive.read(file)
                    target = into / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content)
                    digests[file] = hashlib.sha256(content).hexdigest()
    except zipfile.BadZipFile as error:
        raise EngineError(f"{wheel.name}, as downloaded, is no readable wheel: {error}") from error
    with wheel.open("rb") as stream:
        wheel_sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    manifest = {
        "name": name,
        "version": version,
        "wheel": wheel.name,
        "wheel_sha256": wheel_sha256,
        "files": digests,
    }
    (into / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")


def _swap(staged: Path, folder: Path) -> None:
    """Put `staged` where `folder` is. Whoever reads sees the old files, none, or the new ones."""
    holder = Path(tempfile.mkdtemp(prefix=".old-", dir=folder.parent))
    old = holder / folder.name
    try:
        with suppress(FileNotFoundError):
            folder.rename(old)
        staged.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process has just put the same files there
            raise
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(holder, ignore_errors=True)
