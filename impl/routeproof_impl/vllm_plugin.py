"""An entry point of vLLM's group `vllm.general_plugins`: our capturer in place of vLLM's.

Off unless ROUTEPROOF_CAPTURER=1, and then nothing of vLLM is imported. vLLM goes on without a
plugin that cannot be imported, with a line in its log, but not past one that raises: hence all
that can fail is in `register`.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any, cast, get_args

from routeproof_impl.capturer import Mode

SWITCH = "ROUTEPROOF_CAPTURER"
MODE = "ROUTEPROOF_CAPTURER_MODE"
SUPPORTED = ((0, 31), (0, 32), (0, 33))

_CONNECTOR = "vllm.distributed.aux_output_connector.worker"
_CAPTURER = "vllm.model_executor.layers.fused_moe.routed_experts_capturer"
_FORWARD = "vllm.forward_context"
_DONE = "_routeproof_mode"
_COUNTS_IN_CONTEXT = (0, 33)
"""From here on, every forward context has its token count."""


class PluginError(RuntimeError):
    """The plugin is switched on and cannot do its work: vLLM is not to start."""


def chosen_mode(environment: Mapping[str, str]) -> Mode | None:
    """Read the switch: None where it is off; raise PluginError for any other value than 0 and 1."""
    switch = environment.get(SWITCH, "")
    if switch in {"", "0"}:
        return None
    if switch != "1":
        raise PluginError(f"{SWITCH}={switch!r}: expected 1 (on), 0 or nothing (off)")
    mode = environment.get(MODE) or "per-layer"
    if mode not in get_args(Mode):
        raise PluginError(f"{MODE}={mode!r}: expected one of {', '.join(get_args(Mode))}")
    return cast("Mode", mode)


def supported_version(version: object) -> tuple[int, int]:
    """Give major and minor version of vLLM; raise PluginError for one that this was not written for."""
    match = re.match(r"(\d+)\.(\d+)", str(version))
    found = (int(match[1]), int(match[2])) if match else None
    if found is None or found not in SUPPORTED:
        known = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
        raise PluginError(
            f"{SWITCH}=1, but routeproof's capturer does not know vLLM {version}: it knows {known}. "
            f"Unset {SWITCH} to run vLLM with its own"
        )
    return found


def register() -> None:
    """Put our capturer behind vLLM's interface, if the environment asks for it; repeated calls do nothing."""
    mode = chosen_mode(os.environ)
    if mode is None:
        return
    version = supported_version(getattr(importlib.import_module("vllm"), "__version__", "unknown"))
    connector, capturer, forward = (_module(name) for name in (_CONNECTOR, _CAPTURER, _FORWARD))
    before = getattr(connector, _DONE, None)
    if before is not None:
        if before != mode:
            raise PluginError(f"{MODE} has changed from {before!r} to {mode!r} in a process")
        return
    theirs = _attribute(capturer, "RoutedExpertsCapturer")
    kind = _attribute(connector, "AuxOutputWorkerConnector")
    methods = {name: _attribute(kind, name) for name in ("begin_step", "prepare_output", "process_output")}
    entering = _attribute(forward, "set_forward_context")

    from routeproof_impl import vllm_capturer  # noqa: PLC0415 - not needed where the switch is off

    ours = type("RoutedExpertsCapturer", (vllm_capturer.VllmCapturer,), {"mode": mode})
    _replace("RoutedExpertsCapturer", theirs, ours)
    for name, wrapper in (
        ("begin_step", _begin_step),
        ("prepare_output", _prepare_output),
        ("process_output", _process_output),
    ):
        setattr(kind, name, wrapper(methods[name]))
    if version < _COUNTS_IN_CONTEXT:
        _replace("set_forward_context", entering, _counting(entering, forward))
    setattr(connector, _DONE, mode)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PluginError(f"{SWITCH}=1, but this vLLM cannot import {name}: {error}") from error


def _attribute(owner: Any, name: str) -> Any:  # noqa: ANN401
    """Give what vLLM must have; raise PluginError where it does not."""
    found = getattr(owner, name, None)
    if found is None:
        raise PluginError(f"{SWITCH}=1, but {owner.__name__} of this vLLM has no {name}")
    return found


def _replace(name: str, theirs: object, ours: object) -> None:
    """Put ours in every module of vLLM that has theirs under this name; later imports find it there."""
    for title, module in list(sys.modules.items()):
        if (title == "vllm" or title.startswith("vllm.")) and vars(module).get(name) is theirs:
            setattr(module, name, ours)


# --- wrappers, each of a function of vLLM


def _begin_step(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what runs before the forward pass of a scheduled step, on every TP rank; not for dummy runs.

    Where nothing is scheduled, no pass follows, and dummy runs may.
    """

    @wraps(theirs)
    def begin_step(self: Any, metadata: Any) -> Any:  # noqa: ANN401
        self._capturer.begin(real=metadata is not None and len(metadata.requests) > 0)
        return theirs(self, metadata)

    return begin_step


def _prepare_output(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what runs after the forward pass, on every TP rank: the end of a scheduled step."""

    @wraps(theirs)
    def prepare_output(self: Any, input_batch: Any) -> Any:  # noqa: ANN401
        if self._step_metadata is None:
            return theirs(self, input_batch)
        capturer = self._capturer
        real = int(input_batch.query_start_loc_np[len(input_batch.req_ids)])
        capturer.end(real, int(input_batch.num_tokens_after_padding))
        capturer.hands_over = True
        try:
            return theirs(self, input_batch)
        finally:
            capturer.hands_over = False

    return prepare_output


def _process_output(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what runs when the output is consumed: rows are read and checked only now."""

    @wraps(theirs)
    def process_output(self: Any, pending: Any) -> Any:  # noqa: ANN401
        read = getattr(pending.routed_experts, "read", None)
        if read is not None:
            pending.routed_experts = read()
        return theirs(self, pending)

    return process_output


def _counting(theirs: Callable[..., Any], forward: ModuleType) -> Callable[..., Any]:
    """Note the token count on the context: without graphs, vLLM before 0.33 may keep none there.

    Recording a full graph is such a pass, and its replay has to be found by its count.
    """

    @wraps(theirs)
    @contextmanager
    def set_forward_context(*args: Any, **kwargs: Any) -> Iterator[None]:  # noqa: ANN401
        tokens = args[2] if len(args) > 2 else kwargs.get("num_tokens")  # noqa: PLR2004 - its third argument
        with theirs(*args, **kwargs) as entered:
            forward.get_forward_context().routeproof_tokens = tokens
            yield entered

    return set_forward_context
