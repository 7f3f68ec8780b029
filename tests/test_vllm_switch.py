"""The switch of the vLLM plugin: off, on, misspelt, and in a vLLM that it does not know."""

import os
import subprocess
import sys

import pytest
from routeproof_conformance.engines.stubs import StubModule
from routeproof_impl import vllm_plugin
from routeproof_impl.vllm_plugin import MODE, SWITCH, PluginError, chosen_mode, register, supported_version

MODES = ("per-layer", "deferred")


@pytest.mark.parametrize("value", [None, "", "0"])
def test_switched_off_nothing_of_vllm_is_imported(tmp_path, value):
    (tmp_path / "vllm.py").write_text("raise SystemExit('vllm was imported')\n")
    code = (
        "import sys; from routeproof_impl.vllm_plugin import register; register()\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'vllm'])"
    )
    environment = {key: kept for key, kept in os.environ.items() if key != SWITCH}
    environment |= {"PYTHONPATH": str(tmp_path), MODE: "nonsense"} | (
        {} if value is None else {SWITCH: value}
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("value", ["yes", "true", "2", " 1", "on"])
def test_a_switch_of_another_value_is_refused(value):
    with pytest.raises(PluginError, match=rf"ROUTEPROOF_CAPTURER='{value}': expected 1 \(on\), 0 or nothing"):
        chosen_mode({SWITCH: value})


def test_modes():
    assert chosen_mode({SWITCH: "1"}) == chosen_mode({SWITCH: "1", MODE: ""}) == "per-layer"
    assert [chosen_mode({SWITCH: "1", MODE: mode}) for mode in MODES] == list(MODES)
    with pytest.raises(
        PluginError, match=r"ROUTEPROOF_CAPTURER_MODE='Deferred': expected one of deferred, per-"
    ):
        chosen_mode({SWITCH: "1", MODE: "Deferred"})


@pytest.mark.parametrize("name", ["0.30.2", "0.34.0", "1.32.0", "0.3.1", "dev", None])
def test_other_versions_are_refused(monkeypatch, name):
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setitem(sys.modules, "vllm", StubModule("vllm", **({"__version__": name} if name else {})))
    with pytest.raises(
        PluginError, match=rf"does not know vLLM {name or 'unknown'}: it knows 0\.31, 0\.32, 0\.33"
    ):
        register()


def test_supported_versions():
    found = [supported_version(name) for name in ("0.31.0", "0.32.1rc1", "0.33.0+cpu")]
    assert found == [(0, 31), (0, 32), (0, 33)]


def test_a_vllm_without_the_parts_is_refused(monkeypatch):
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setitem(sys.modules, "vllm", StubModule("vllm", __version__="0.33.0"))
    with pytest.raises(PluginError, match=r"cannot import vllm\.distributed\.aux_output_connector\.worker"):
        register()


def test_vllm_finds_the_entry_point():
    from importlib.metadata import entry_points

    (found,) = entry_points(group="vllm.general_plugins", name="routeproof")
    assert found.load() is vllm_plugin.register
