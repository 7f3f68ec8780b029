"""Fixtures that several test files share."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from routeproof_conformance.engines import sglang, vllm
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.fetch import FetchedFiles, cached, fetch_command
from routeproof_conformance.engines.sglang_source import FILES


def _published(package: str, version: str, files: tuple[str, ...]) -> FetchedFiles:
    try:
        return cached(package, version, files)
    except EngineError as error:
        if os.environ.get("ROUTEPROOF_REQUIRE_PUBLISHED") == "1":
            pytest.fail(str(error))
        pytest.skip(f"not fetched: run `{fetch_command(package, version)}`")


@pytest.fixture
def vllm_file() -> Callable[[str], Path]:
    """The capturer's file of a published version, out of the cache; skips if it is not there."""
    return lambda version: _published(vllm.PACKAGE, version, (vllm.FILE,)).path(vllm.FILE)


@pytest.fixture
def sglang_root() -> Path:
    """The folder that holds the published SGLang's package, out of the cache; skips if it is not there."""
    return _published(sglang.PACKAGE, sglang.PUBLISHED[-1], FILES).root
