"""`benchmarks/gpu_graphs.py` without a GPU: its device is the CPU, its graphs are recorded operations."""

import importlib.util
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.test_impl_hotpath import Operations

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu_graphs.py"


class Recording:
    """Stands for a CUDA graph."""

    def replay(self):
        for func, args, kwargs in self.seen:
            func(*args, **kwargs)


@contextmanager
def record(graph):
    with Operations() as operations:
        yield
    graph.seen = operations.seen


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_graphs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    real = module.RoutedExpertsCapturer
    monkeypatch.setattr(module, "RoutedExpertsCapturer", lambda *args: real(*args[:-1], "cpu"))
    monkeypatch.setattr(module, "ROUNDS", 6)
    monkeypatch.setattr(torch.Tensor, "cuda", torch.Tensor.clone)
    for name, stand_in in {
        "CUDAGraph": Recording,
        "graph": record,
        "synchronize": lambda: None,
        "set_sync_debug_mode": lambda _: None,
        "memory_allocated": lambda: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return module


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_its_steps_are_right(script, dtype, tp, capsys):
    script.run(dtype, tp)
    assert "6 replays and 6 eager steps right" in capsys.readouterr().out


def test_it_ends_where_a_replay_is_of_other_rows(script, monkeypatch):
    monkeypatch.setattr(Recording, "replay", lambda _: None)
    with pytest.raises(SystemExit, match="wrong rows"):
        script.run(torch.int32, 2)
