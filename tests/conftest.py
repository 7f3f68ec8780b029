"""Fixtures that several test files share."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.fetch import cached, fetch_command
from routeproof_conformance.engines.vllm import FILE, PACKAGE


@pytest.fixture
def vllm_file() -> Callable[[str], Path]:
    """The capturer's file of a published version, out of the cache; skips if it is not there."""

    def find(version: str) -> Path:
        try:
            return cached(PACKAGE, version, (FILE,)).path(FILE)
        except EngineError as error:
            if os.environ.get("ROUTEPROOF_REQUIRE_PUBLISHED") == "1":
                pytest.fail(str(error))
            pytest.skip(f"not fetched: run `{fetch_command(PACKAGE, version)}`")

    return find
