"""Faults planted into SGLang's published functions, and which obligation has to refute which."""

import ast
from typing import ClassVar

from routeproof_conformance.prove.fakes import LayerBefore, Moved, Shift

_GATHER = "attn_tp_all_gather_into_tensor"
_BACKEND = "_is_scattered_a2a_backend"


def _called(node: ast.AST) -> str:
    """Give the name of the function that a call or a call as a statement calls."""
    call = node.value if isinstance(node, ast.Expr) else node
    return call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""


class _Longer(Moved):
    """Slices have one row too many."""

    last = 1


class _Shorter(Moved):
    """Slices have one row too few."""

    last = -1


class _First(ast.NodeTransformer):
    """Every DP rank starts at the rows of the first."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return ast.Constant(0) if _called(node) == "sum" else node


class _Eager(ast.NodeTransformer):
    """A graph is taken for an eager batch."""

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.test, ast.Name) and node.test.id == "can_run_graph":
            node.test = ast.Constant(value=False)
        return node


class _Wider(ast.NodeTransformer):
    """The slots of a graph lie one row further apart."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.right, ast.Name) and node.right.id == "cuda_graph_batch":
            node.right = ast.BinOp(node.right, ast.Add(), ast.Constant(1))
        return node


class _Ungathered(ast.NodeTransformer):
    """The gather buffer is captured without a gather."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if _called(node) == _GATHER else node


class _Twice(ast.NodeTransformer):
    """Shards are gathered twice."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        return [node, node] if _called(node) == _GATHER else node


class _Own(ast.NodeTransformer):
    """Shards are gathered, and the own one is captured."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        if _called(node) != _GATHER:
            return node
        return [node, ast.parse("topk_indices = local_topk").body[0]]


class _Backend(ast.NodeTransformer):
    """Whether rows are shards is told otherwise."""

    told: ClassVar[str]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == _BACKEND:
            self.generic_visit(node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        return ast.parse(self.told.format(ast.unparse(node.value or ast.Constant(None)))).body[0]


class _Always(_Backend):
    """Of every backend."""

    told = "return True"


class _Never(_Backend):
    """Of none."""

    told = "return False"


class _ByRank(_Backend):
    """TP rank 0 holds the contrary."""

    told = "return (get_parallel().attn_tp_rank == 0) != ({})"


class _Later(ast.NodeTransformer):
    """Layers after the first lose a row."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == "capture" and "self.buffer[" in ast.unparse(node):
            layer, ids = (item.arg for item in node.args.args[1:])
            node.body[:0] = ast.parse(f"if {layer} > 0: {ids} = {ids}[1:]").body
        return node


class _Cut(ast.NodeTransformer):
    """Of virtual slots the last gets nothing."""

    def visit_Slice(self, node: ast.Slice) -> ast.AST:
        if node.upper is not None and ast.unparse(node.upper) == "out_cache_loc.shape[0]":
            node.upper = ast.BinOp(node.upper, ast.Sub(), ast.Constant(1))
        return node


class _Unknown(ast.NodeTransformer):
    """DeepEP's second version is not known."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        second = isinstance(node.func, ast.Attribute) and node.func.attr == "is_deepep_v2"
        return ast.Constant(value=False) if second else node


FAULTS: dict[str, type[ast.NodeTransformer]] = {
    "slices one row later": Shift,
    "a row too many": _Longer,
    "a row too few": _Shorter,
    "start of all ranks": _First,
    "a graph taken for eager": _Eager,
    "slots one row further apart": _Wider,
    "no gather": _Ungathered,
    "the own shard captured": _Own,
    "gathered twice": _Twice,
    "shards of every backend": _Always,
    "shards of no backend": _Never,
    "TP rank 0 otherwise": _ByRank,
    "the layer before": LayerBefore,
    "a row lost at later layers": _Later,
    "the last virtual slot left out": _Cut,
    "DeepEP v2 unknown": _Unknown,
}

_EVERYWHERE: dict[str, tuple[str, ...]] = {
    "own-rows": ("slices one row later", "a row too few"),
    "other-ranks": ("slices one row later",),
    "fail-closed": ("a row too few",),
    "needless-gather": ("shards of every backend",),
    "zero-tokens": ("a row too many",),
    "lockstep": ("TP rank 0 otherwise",),
    "placed": ("the layer before", "a row lost at later layers", "the last virtual slot left out"),
    "box": ("slices one row later", "a row too few"),
}
_SLOTS = ("a graph taken for eager", "slots one row further apart")
_SHARDS = ("no gather", "the own shard captured", "shards of no backend")

CONTROLS: dict[str, dict[str, tuple[str, ...]]] = {
    "plain": _EVERYWHERE,
    "dp-attention": {
        **_EVERYWHERE,
        "own-rows": (*_EVERYWHERE["own-rows"], "start of all ranks"),
        "other-ranks": ("slices one row later", "start of all ranks"),
    },
    "decode-graph": {
        **_EVERYWHERE,
        "own-rows": (*_EVERYWHERE["own-rows"], "start of all ranks", *_SLOTS),
        "other-ranks": ("slices one row later", *_SLOTS),
    },
    "deepep": {
        **_EVERYWHERE,
        "own-rows": (*_EVERYWHERE["own-rows"], *_SHARDS),
        "other-ranks": _SHARDS,
        "needless-gather": ("gathered twice",),
        "placed": (*_EVERYWHERE["placed"], "DeepEP v2 unknown"),
        "box": ("slices one row later", *_SHARDS),
    },
}
"""Faults that an obligation has to refute, by deployment."""
