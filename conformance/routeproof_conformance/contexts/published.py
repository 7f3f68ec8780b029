"""The other surfaces of a published engine: from the files that lie beside its capturer's."""

from pathlib import Path

from routeproof_spec import Surface

from routeproof_conformance.contexts import files, router, sglang, vllm
from routeproof_conformance.contexts.engine import Probe
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.fetch import cache_root, cached


def vllm_probe(root: Path, version: str, surface: Surface, torch: object) -> Probe:
    """Give a surface of the vLLM whose package lies below `root`."""
    needed = files.VLLM_ROUTER if surface is Surface.ROUTER else files.VLLM_CONTEXT
    _check("vllm", version, root, needed)
    return router.router(root, torch) if surface is Surface.ROUTER else vllm.contexts(root, torch)


def sglang_probe(root: Path, version: str) -> Probe:
    """Give the context builder of the SGLang whose package lies below `root`."""
    _check("sglang", version, root, files.SGLANG_FILES)
    return sglang.contexts(root)


def package_root(path: Path, file: str) -> Path:
    """Give the folder above the package, from where its `file` lies; raise EngineError if not there."""
    root = path.resolve().parents[len(Path(file).parts) - 1]
    if root / file != path.resolve():
        raise EngineError(f"{path} does not lie in a package, as {file}: its other files are not to be found")
    return root


def _check(package: str, version: str, root: Path, needed: tuple[str, ...]) -> None:
    """Refuse files that are missing; those in the cache must be the ones fetched."""
    if root == (cache_root() / f"{package}-{version}").resolve():
        cached(package, version, needed)
        return
    missing = [file for file in needed if not (root / file).is_file()]
    if missing:
        raise EngineError(f"the {package} {version} in {root} lacks {', '.join(missing)}")
