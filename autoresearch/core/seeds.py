"""A program apart from its seeds, so that another draw of the same program is told from another program.

An expression of `experiment.seed` and constants alone becomes one name, `SEED`: sums, keys made of it, and keys
folded or chosen by constants. So do names that hold nothing else, and constants that nothing else uses. A statement
that only seeds a framework is left out: the harness has seeded it before.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable

_SEED = "SEED"
_NUMBERS = frozenset({"abs", "hash", "int", "max", "min", "pow", "str"})
_KEYS_OF_SEEDS = frozenset({"PRNGKey", "key"})
# Of NumPy: several numbers make one seed.
_GENERATORS = frozenset({"RandomState", "SeedSequence", "default_rng"})
# As statements, e.g. `torch.manual_seed(experiment.seed + 1)`.
_SEEDING = frozenset({"manual_seed", "manual_seed_all", "seed"})
_PASSES = 8


def without_seeds(tree: ast.Module) -> ast.Module:
    """`tree`, changed in place: what only shifts a seed or a key is gone."""
    loads = Counter(_loaded(tree))
    constants = {
        target.id: node
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.UnaryOp)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    stores = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and _is_stored(node))
    fold = _Fold(frozenset(name for name in constants if stores[name] == 1))
    for _ in range(_PASSES):
        size = len(fold.names)
        fold.names |= _names_of_seeds(tree, fold)
        if len(fold.names) == size:
            break
    fold.visit(tree)
    left = Counter(_loaded(tree))
    for name, node in constants.items():
        if loads[name] and not left[name]:
            node.value = ast.Name(_SEED, ast.Load())
    return tree


def _loaded(tree: ast.AST) -> Iterable[str]:
    return (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _names_of_seeds(tree: ast.Module, fold: _Fold) -> set[str]:
    """Names of which every assignment in the file is made of seeds alone."""
    of_seeds: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
            kind = of_seeds if fold.of_seeds(node.value) else others
            kind.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.For | ast.comprehension | ast.Assign | ast.AugAssign | ast.NamedExpr | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            others |= {
                n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name) and _is_stored(n)
            }
        elif isinstance(node, ast.arg):
            others.add(node.arg)
    return of_seeds - others


class _Fold(ast.NodeTransformer):
    """Replaces the largest expressions of seeds and constants."""

    def __init__(self, constants: frozenset[str]) -> None:
        self._constants = constants
        self.names: set[str] = {"seed", _SEED}

    def of_seeds(self, node: ast.expr) -> bool:
        """Whether an expression holds a seed, and nothing but seeds and constants."""
        return self._kind(node) == "seed"

    def _kind(self, node: ast.expr) -> str:
        """ "seed", "constant", or "" for anything else."""
        match node:
            case ast.Attribute(attr="seed", value=ast.Name()):
                return "seed"
            case ast.Name(id=name):
                return "seed" if name in self.names else "constant" if name in self._constants else ""
            case ast.Constant():
                return "constant"
            case ast.BinOp(left=left, right=right):
                return self._together([left, right])
            case ast.UnaryOp(operand=operand):
                return self._kind(operand)
            case ast.Call(args=[key, shift], keywords=[]) if _called(node) == "fold_in":
                return self._key(key, shift)
            case ast.Subscript(value=ast.Call(args=[key, *_]) as split, slice=index) if _called(split) == "split":
                return self._key(key, index)
            case ast.Call(args=arguments, keywords=[]) if arguments and _called(node) in _NUMBERS | _KEYS_OF_SEEDS:
                return self._together(arguments)
        return ""

    def _key(self, key: ast.expr, choice: ast.expr) -> str:
        """The kind of a key that is made of another one, whatever its name, and of what chooses it."""
        known = isinstance(key, ast.Name) or self._kind(key) == "seed"
        return "seed" if known and self._kind(choice) in ("seed", "constant") else ""

    def _together(self, nodes: Iterable[ast.expr]) -> str:
        kinds = {self._kind(node) for node in nodes}
        if not kinds or "" in kinds:
            return ""
        return "seed" if "seed" in kinds else "constant"

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        match node.value:
            case ast.Call(args=[seed], keywords=[]) if _called(node.value) in _SEEDING and self._kind(seed):
                return None
        return self.generic_visit(node)

    def visit(self, node: ast.AST) -> ast.AST | None:
        if (
            isinstance(node, ast.expr)
            and isinstance(getattr(node, "ctx", None), ast.Load | None)
            and self.of_seeds(node)
        ):
            return ast.Name(_SEED, ast.Load())
        match node:
            case ast.Call(args=[ast.Tuple(elts=items) | ast.List(elts=items)]) if _called(node) in _GENERATORS:
                if self._together(items) == "seed":
                    node.args = [ast.Name(_SEED, ast.Load())]
        visited: ast.AST | None = super().visit(node)
        return visited


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
