"""Faults planted into vLLM's published methods, and which obligation has to refute which."""

import ast

from routeproof_conformance.prove.fakes import LayerBefore, Shift


class _Floor(ast.NodeTransformer):
    """A division that rounds up rounds down."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        numerator = node.left
        if isinstance(node.op, ast.FloorDiv) and isinstance(numerator, ast.BinOp):
            inner = numerator.left
            node.left = inner.left if isinstance(inner, ast.BinOp) else inner
        return node


class _Accept(ast.NodeTransformer):
    """Nothing is rejected."""

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.copy_location(ast.Return(ast.Name("topk_ids", ast.Load())), node)


class _Alone(ast.NodeTransformer):
    """Shards are not gathered."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "all_gather":
            return node.args[0]
        return node


class _Gathered(ast.NodeTransformer):
    """Rows that are whole as they are handed over are gathered all the same."""

    def visit_Return(self, node: ast.Return) -> ast.AST:
        return self._gathered(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        return self._gathered(node)

    @staticmethod
    def _gathered(node: ast.Return | ast.Assign) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "topk_ids":
            node.value = ast.parse("get_tp_group().all_gather(topk_ids, dim=0)", mode="eval").body
        return node


class _Whole(ast.NodeTransformer):
    """Nothing is cut off."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        loaded = isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Slice)
        return node.value if loaded else node


class _Lose(ast.NodeTransformer):
    """The first row is lost on entry."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == "capture":
            ids = node.args.args[2].arg
            node.body[:0] = ast.parse(f"{ids} = {ids}[1:]").body
        return node


class _Thrown(ast.NodeTransformer):
    """Rows that are whole as they are handed over are gathered, and nobody uses the outcome."""

    def visit_Return(self, node: ast.Return) -> ast.AST | list[ast.AST]:
        return self._thrown(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.AST]:
        return self._thrown(node)

    @staticmethod
    def _thrown(node: ast.Return | ast.Assign) -> ast.AST | list[ast.AST]:
        if isinstance(node.value, ast.Name) and node.value.id == "topk_ids":
            return [ast.parse("get_tp_group().all_gather(topk_ids, dim=0)").body[0], node]
        return node


class _Later(ast.NodeTransformer):
    """Layers after the first lose a row."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == "capture":
            layer, ids = (item.arg for item in node.args.args[1:])
            node.body[:0] = ast.parse(f"if {layer} > 0: {ids} = {ids}[1:]").body
        return node


class _Offset(ast.NodeTransformer):
    """Every microbatch is the first."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        named = isinstance(node.func, ast.Name) and node.func.id == "dbo_current_ubatch_token_offset"
        return ast.Constant(0) if named else node


class _Published(ast.NodeTransformer):
    """The first row is not published."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == "snapshot_routing_data":
            self.generic_visit(node)
        return node

    def visit_Slice(self, node: ast.Slice) -> ast.AST:
        return ast.Slice(ast.Constant(1), node.upper)


FAULTS: dict[str, type[ast.NodeTransformer]] = {
    "slices one row later": Shift,
    "shards rounded down": _Floor,
    "nothing rejected": _Accept,
    "no gather": _Alone,
    "whole rows gathered": _Gathered,
    "gathered and thrown away": _Thrown,
    "nothing cut off": _Whole,
    "the first row is lost": _Lose,
    "the layer before": LayerBefore,
    "a row lost at later layers": _Later,
    "no offset": _Offset,
    "the first row unpublished": _Published,
}

CONTROLS: dict[str, tuple[str, ...]] = {
    "own-rows": ("slices one row later", "shards rounded down", "no gather"),
    "other-ranks": ("no gather",),
    "fail-closed": ("nothing rejected",),
    "malformed-groups": ("nothing rejected",),
    "needless-gather": ("whole rows gathered", "gathered and thrown away"),
    "zero-tokens": ("nothing cut off",),
    "uncounted": ("the first row is lost",),
    "placed": ("the layer before", "a row lost at later layers", "no offset", "the first row unpublished"),
    "box": ("slices one row later", "nothing rejected"),
}
"""Faults of the published methods that an obligation has to refute."""
