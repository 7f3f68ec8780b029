"""Changed copies of published files: each is refuted, or an error that names what is strange."""

import shutil

import pytest
from routeproof_conformance.engines.sglang_source import BASE, CAPTURER, DP_ATTENTION, FILES
from routeproof_conformance.prove.published import PublishedTarget
from routeproof_conformance.prove.sglang import DEPLOYMENTS, sglang_target
from routeproof_reference.proofs import Status, UnknownShapeError, placed, smt

pytest.importorskip("z3")
pytestmark = pytest.mark.published

NEW = "0.33.0"


@pytest.fixture
def copy(vllm_file, tmp_path):
    """Make a target of the newest file with one place changed."""

    def make(old, new):
        source = vllm_file(NEW).read_text("utf-8")
        assert old in source, old
        path = tmp_path / "routed_experts_capturer.py"
        path.write_text(source.replace(old, new), "utf-8")
        return PublishedTarget("x", path)

    return make


def examined(target, name):
    return placed.establish(target) if name == "placed" else smt.prove(target, name, (1, 2, 3, None))


# --- vLLM: what a claim refutes


@pytest.mark.parametrize("name", ["placed", "own-rows", "needless-gather"])
def test_a_copy_that_is_not_changed_is_as_the_original(copy, name):
    check = examined(copy("RoutedExpertsCapturer", "RoutedExpertsCapturer"), name)
    assert (check.status, check.vacuous) == (Status.ESTABLISHED, ()), check


OFFSET = "        offset = dbo_current_ubatch_token_offset()"
WHOLE = "        if n == num_local_tokens:\n            return topk_ids\n"
THROWN = "get_tp_group().all_gather(topk_ids, dim=0)\n"
LATE = "        ctx = get_forward_context()\n        local"
SNAPSHOT = "self.device_buffer[:num_tokens].to"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        pytest.param("placed", ", layer_id] =", ", layer_id - 1] =", id="wrong_layer"),
        pytest.param(
            "placed",
            LATE,
            LATE.replace(
                "        local",
                "        if layer_id > 0:\n            topk_ids = topk_ids[1:]\n        local",
            ),
            id="late_layer",
        ),
        pytest.param("placed", OFFSET, OFFSET.replace("= ", "= 2 * "), id="offset_twice"),
        pytest.param("placed", OFFSET, "        offset = 0", id="offset_ignored"),
        pytest.param(
            "placed", SNAPSHOT, SNAPSHOT.replace("[:num_tokens]", "[1:num_tokens + 1]"), id="snapshot"
        ),
        pytest.param(
            "placed", SNAPSHOT, SNAPSHOT.replace("num_tokens", "num_tokens - 1"), id="snapshot_short"
        ),
        pytest.param(
            "own-rows",
            "(), dim=0)[\n                :num_local_tokens\n            ]",
            "(), dim=0)",
            id="no_trim_shards",
        ),
        pytest.param("own-rows", "return topk_ids[:num_local_tokens]", "return topk_ids", id="no_trim_local"),
        pytest.param(
            "needless-gather",
            WHOLE,
            WHOLE.replace("            return", f"            {THROWN}            return"),
            id="gather_discarded_full",
        ),
        pytest.param(
            "needless-gather",
            "                end = int(",
            f"                {THROWN}                end = int(",
            id="gather_discarded_cross",
        ),
    ],
)
def test_a_wrong_copy_is_refuted(copy, name, old, new):
    assert examined(copy(old, new), name).status is Status.REFUTED


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0"])
def test_files_without_microbatches_are_refuted_and_no_error(vllm_file, version):
    check = placed.establish(PublishedTarget("x", vllm_file(version)))
    assert check.status is Status.REFUTED
    assert "go to row 0 of layer" in check.detail


@pytest.mark.parametrize("fault", ["the layer before", "a row lost at later layers", "no offset"])
def test_the_other_claims_do_not_see_layers_and_offsets(copy, fault):
    """So that these have a claim of their own."""
    target = copy("RoutedExpertsCapturer", "RoutedExpertsCapturer").faulty(fault)
    assert smt.prove(target, "own-rows", (2,)).status is Status.ESTABLISHED
    assert placed.establish(target).status is Status.REFUTED


# --- vLLM: what is an error

AFTER = "class RoutedExpertsSink:"
IN_CLASS = "    def snapshot_routing_data"
IMPORT = "import torch\n"
GROUP = "from vllm.distributed.parallel_state import get_tp_group"
CLASS = "class RoutedExpertsCapturer:"
TOLD = "            num_local_tokens = ctx.batch_descriptor.num_tokens"
TRIED = (
    "            try:\n                num_local_tokens = ctx.batch_descriptor.num_real\n"
    "            except {}:\n"
    "                num_local_tokens = ctx.batch_descriptor.num_tokens"
)


def before(old, added):
    return old, f"{added}\n\n\n{old}"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        pytest.param("= vllm_config.parallel_config.data_parallel_rank", "= 0", "dp_rank", id="init_dp_rank"),
        pytest.param("config.tensor_parallel_size", "config.pipeline_parallel_size", "tp_size", id="init_tp"),
        pytest.param("self.tp_size = ", "self.size = ", "tp_size", id="init_lacks_tp"),
        pytest.param(
            *before("    def capture(", "    def again(self):\n        self.dp_rank = 0"),
            "dp_rank",
            id="set_twice",
        ),
        pytest.param(
            *before(AFTER, "RoutedExpertsCapturer.capture = None"), "capture is changed", id="reassign_module"
        ),
        pytest.param(
            *before(AFTER, "del RoutedExpertsCapturer.capture"), "capture is changed", id="del_module"
        ),
        pytest.param(
            *before(AFTER, "setattr(RoutedExpertsCapturer, 'capture', None)"), "setattr", id="setattr_module"
        ),
        pytest.param(
            *before(AFTER, "def patch():\n    RoutedExpertsCapturer.capture = None"),
            "is changed",
            id="in_function",
        ),
        pytest.param(*before(AFTER, "patch(RoutedExpertsCapturer)"), "used at import", id="handed_on"),
        pytest.param(
            *before(AFTER, "class Better(RoutedExpertsCapturer):\n    pass"), "used at import", id="derived"
        ),
        pytest.param(*before(AFTER, "RoutedExpertsCapturer = None"), "is bound 2 times", id="rebound"),
        pytest.param(*before(AFTER, f"{CLASS}\n    pass"), "2 classes", id="class_twice"),
        pytest.param(
            IN_CLASS, f"    capture = _wrap(capture)\n\n{IN_CLASS}", "has a statement", id="reassign_class"
        ),
        pytest.param(
            IN_CLASS, f"    capture = None\n\n{IN_CLASS}", "assigns to capture", id="constant_class"
        ),
        pytest.param(
            IN_CLASS, f"    def capture(self, a, b):\n        pass\n\n{IN_CLASS}", "twice", id="method_twice"
        ),
        pytest.param(
            IN_CLASS, f"    def __getattribute__(self, a):\n        pass\n\n{IN_CLASS}", "hook", id="hook"
        ),
        pytest.param(CLASS, f"@_patched\n{CLASS}", "decorators", id="class_decorator"),
        pytest.param(CLASS, "class RoutedExpertsCapturer(Base):", "bases", id="class_base"),
        pytest.param(CLASS, "class RoutedExpertsCapturer(metaclass=M):", "bases", id="metaclass"),
        pytest.param(
            "    def capture(", "    @_patched\n    def capture(", "_patched", id="method_decorator"
        ),
        pytest.param(
            "    def capture(", "    @property\n    def capture(", "no method capture", id="property"
        ),
        pytest.param(
            *before(AFTER, "def len(x):\n    return x.shape[0] - 1"), "len is bound", id="module_len"
        ),
        pytest.param(IMPORT, f"{IMPORT}from numpy import sum\n", "sum is bound", id="shadow_import"),
        pytest.param(IMPORT, f"{IMPORT}from numpy import *\n", "everything", id="star"),
        pytest.param(IMPORT, f"{IMPORT}import builtins\n", "builtins is bound", id="builtins"),
        pytest.param(*before(AFTER, "for int in ():\n    pass"), "int is bound", id="loop"),
        pytest.param(*before(AFTER, "with open('x') as sum:\n    pass"), "sum is bound", id="with"),
        pytest.param(*before(AFTER, "if (len := 3):\n    pass"), "len is bound", id="walrus"),
        pytest.param(*before(AFTER, "def f():\n    global len\n    len = 3"), "len is bound", id="global"),
        pytest.param(*before(AFTER, "globals()['len'] = 3"), "globals is used", id="globals"),
        pytest.param(*before(AFTER, "exec('len = 3')"), "exec is used", id="exec"),
        pytest.param(GROUP, GROUP.replace("parallel_state", "other"), "get_tp_group is bound", id="origin"),
        pytest.param(GROUP, f"{GROUP[:-13]} get_ep_group as get_tp_group", "get_tp_group", id="renamed"),
        pytest.param(GROUP, "get_tp_group = None", "get_tp_group is bound", id="assigned"),
        pytest.param(GROUP, "", "get_tp_group", id="not_imported"),
        pytest.param(TOLD, TRIED.format("Exception"), "num_real", id="try_attr"),
        pytest.param(TOLD, TRIED.format("BaseException"), "swallows", id="try_base"),
        pytest.param(TOLD, TRIED.format("").replace("except ", "except"), "swallows", id="try_bare"),
        pytest.param(LATE, f"        from x import get_tp_group\n{LATE}", "imports x", id="import_late"),
        pytest.param(CLASS, "class RoutedExpertsCapturer(:", "cannot be parsed: SyntaxError", id="syntax"),
        pytest.param(CLASS, f"\0{CLASS}", "cannot be parsed: ", id="null_byte"),
    ],
)
def test_a_copy_of_another_shape_is_an_error_that_names_it(copy, old, new, named):
    with pytest.raises(UnknownShapeError, match=named):
        smt.prove(copy(old, new), "own-rows", (2,))


def test_bytes_that_are_no_text_are_an_error(tmp_path):
    path = tmp_path / "capturer.py"
    path.write_bytes(b"x = '\xff'\n")
    with pytest.raises(UnknownShapeError, match=r"capturer.py cannot be parsed: SyntaxError"):
        PublishedTarget("x", path)
    with pytest.raises(UnknownShapeError, match=r"other.py cannot be parsed: FileNotFoundError"):
        PublishedTarget("x", tmp_path / "other.py")


# --- SGLang


@pytest.fixture
def served(sglang_root, tmp_path):
    """Make the target of a deployment with one place of one file changed."""

    def make(deployment, file, old, new):
        for name in FILES:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(sglang_root / name, tmp_path / name)
        source = (tmp_path / file).read_text("utf-8")
        assert old in source, old
        (tmp_path / file).write_text(source.replace(old, new), "utf-8")
        return sglang_target("x", deployment, tmp_path)

    return make


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_layers_slots_and_backends_make_no_difference(served, deployment):
    check = placed.establish(served(deployment, BASE, "", ""))
    assert (check.status, check.vacuous) == (Status.ESTABLISHED, ()), check


BATCH = "        batch = topk_indices.shape[0]\n"
CUT = "slice_gpu = slice_gpu[: out_cache_loc.shape[0]]"
KEPT = "self.host_cache.buffer[self.out_cache_loc] = self.topk"


@pytest.mark.parametrize(
    ("deployment", "name", "file", "old", "new"),
    [
        pytest.param(
            "plain", "placed", BASE, "[:batch, layer_id, :]", "[:batch, layer_id - 1, :]", id="layer_minus"
        ),
        pytest.param(
            "plain",
            "placed",
            BASE,
            BATCH,
            f"        if layer_id > 0:\n            topk_indices = topk_indices[1:]\n{BATCH}",
            id="layer_late",
        ),
        pytest.param("plain", "placed", BASE, CUT, CUT.replace("[:", "[1 :"), id="end_forward"),
        pytest.param(
            "plain", "placed", BASE, "= slice_gpu.cpu()", "= slice_gpu.cpu()[1:]", id="copied_at_once"
        ),
        pytest.param("plain", "own-rows", BASE, KEPT, f"{KEPT}[1:]", id="finalize"),
        pytest.param(
            "decode-graph",
            "own-rows",
            BASE,
            "            forward_batch, can_run_graph, cuda_graph_batch\n        )\n        # get_topk",
            "            forward_batch, False, cuda_graph_batch\n        )\n        # get_topk",
            id="on_forward_end_args",
        ),
        pytest.param("deepep", "placed", CAPTURER, " or backend.is_deepep_v2()", "", id="v2_only"),
    ],
)
def test_a_wrong_copy_of_sglang_is_refuted(served, deployment, name, file, old, new):
    assert examined(served(deployment, file, old, new), name).status is Status.REFUTED


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        pytest.param(CAPTURER, "(BaseTopkCapturer):", "(_Other):", "bases", id="base_override"),
        pytest.param(
            BASE, "class BaseDeviceCache:", "class BaseDeviceCache(_Wrong):", "bases", id="class_attr"
        ),
        pytest.param(
            BASE,
            *before("class BaseHostCache:", "BaseDeviceCache.capture = None"),
            "is changed",
            id="reassigned",
        ),
        pytest.param(
            BASE,
            "@dataclasses.dataclass\n",
            "@dataclasses.dataclass\n@_patched\n",
            "decorators",
            id="decorated",
        ),
        pytest.param(
            CAPTURER,
            "sglang.srt.state_capturer.base import",
            "other import",
            "BaseTopkCapturer",
            id="base_origin",
        ),
        pytest.param(
            DP_ATTENTION,
            "\ndef is_dp_attention_enabled()",
            "\n@functools.cache\ndef is_dp_attention_enabled()",
            "is decorated",
            id="function_decorated",
        ),
        pytest.param(
            DP_ATTENTION,
            "\ndef get_moe_cp_rank()",
            "\nis_dp_attention_enabled = bool\n\n\ndef get_moe_cp_rank()",
            "is bound 2 times",
            id="function_rebound",
        ),
        pytest.param(
            DP_ATTENTION,
            "import functools\n",
            "import functools\nfrom numpy import sum\n",
            "sum is",
            id="sum",
        ),
        pytest.param(
            BASE,
            "            out_cache_loc = forward_batch.out_cache_loc\n",
            "            out_cache_loc = forward_batch.out_cache_loc.clone()\n        elif True:\n"
            "            out_cache_loc = forward_batch.out_cache_loc\n",
            "expected rows at virtual slots",
            id="other_slots",
        ),
        pytest.param(BASE, KEPT, "pass", "given nothing", id="kept_nowhere"),
        pytest.param(
            CAPTURER, "def _get_local_slice(", "def _get_local_slice((", "cannot be parsed", id="syntax"
        ),
    ],
)
def test_a_copy_of_sglang_of_another_shape_is_an_error(served, file, old, new, named):
    with pytest.raises(UnknownShapeError, match=named):
        placed.establish(served("plain", file, old, new))
