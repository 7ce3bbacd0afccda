"""A program apart from its seeds, so that another draw of the same program is told from another program.

Four rules. What makes a generator or a key of anything that derives from `experiment.seed` is one name, `SEED`, and so
are the arguments of a call that seeds; a statement that only seeds is left out, since the harness has seeded before.
An expression of `experiment.seed` and constants alone is `SEED` too, and so is a name that holds nothing else. A key
that is folded or chosen by constants is the key it was made of. And what only these used goes with them: constants,
assignments, helper functions, imports. Nothing else is touched, so that an edit elsewhere stays another program.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from autoresearch.core.derivation import MAKERS, SEEDING_METHODS, derivation
from autoresearch.core.syntax import Module

_SEED = "SEED"
_NUMBERS = frozenset({"abs", "hash", "int", "max", "min", "pow", "str"})
_SEEDING = SEEDING_METHODS | {"seed"}
_PASSES = 50
_FIXED = frozenset({"max_rows", "seq_len", "vocab_size"})  # of an experiment: as good as constants
_Binding = tuple[ast.expr, ast.expr]


def without_seeds(tree: ast.Module) -> ast.Module:
    """`tree`, changed in place: what only shifts a seed or a key is gone."""
    loads = _loads(tree)
    _Fold(Module(tree), loads).visit(tree)
    for _ in range(_PASSES):
        left = _loads(tree)
        _Drop(loads - left, left).visit(tree)
        if _loads(tree) == left:
            break
    return tree


def _loads(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _stored(node: ast.AST) -> list[ast.Name]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _item(several: ast.expr, index: int) -> ast.expr:
    return ast.Subscript(several, ast.Constant(index), ast.Load())


def _bindings(node: ast.AST) -> Iterator[_Binding]:
    """What a node assigns, one target each; an item of what is unpacked is one of its subscripts."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _unpacked(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
            yield target, ast.BinOp(ast.Name(name, ast.Load()), op, value)
        case ast.For(target=target, iter=several) | ast.comprehension(target=target, iter=several):
            yield from _unpacked(target, _item(several, 0))


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[_Binding]:
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
        return
    pairs = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
    for index, inner in enumerate(target.elts):
        yield from _unpacked(inner, value.elts[index] if pairs else _item(value, index))  # type: ignore[attr-defined]


class _Fold(ast.NodeTransformer):
    """Replaces what is made of seeds, and leaves out what only seeds."""

    def __init__(self, module: Module, loads: set[str]) -> None:
        self._module, self._loads = module, loads
        self._derives = derivation(module)
        trains = [n for n in module.tree.body if isinstance(n, ast.FunctionDef) and n.name == "train"]
        self._experiments = {"experiment", *(a.arg for n in trains for a in (*n.args.posonlyargs, *n.args.args)[:1])}
        stores = Counter(name.id for name in _stored(module.tree))
        self._constants = {
            target.id
            for node in module.tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.UnaryOp)
            for target in node.targets
            if isinstance(target, ast.Name) and stores[target.id] == 1
        }
        self._names: dict[str, str] = {}
        self._settle_names()

    def _settle_names(self) -> None:
        """Keep the names of which every assignment in the file is a seed, or several keys.

        All are at first, so that `key = fold_in(key, 1)` doesn't speak against `key`; what else is found takes some
        away, until it agrees.
        """
        held: dict[str, list[ast.expr]] = {}
        for node in self._module.nodes:
            for target, value in _bindings(node):
                if isinstance(target, ast.Name):
                    held.setdefault(target.id, []).append(value)
        stores = Counter(name.id for name in _stored(self._module.tree))
        parameters = {node.arg for node in self._module.nodes if isinstance(node, ast.arg)}
        held = {name: values for name, values in held.items() if len(values) == stores[name]}
        self._names = {name: "seed" for name in held if name not in parameters}
        for _ in range(_PASSES):
            before = dict(self._names)
            for name in before:
                kinds = {self._kind(value) for value in held[name]}
                self._names[name] = kinds.pop() if len(kinds) == 1 else ""
            if self._names == before:
                return
        self._names = {}

    def _kind(self, node: ast.expr) -> str:
        """ "seed", "keys" (several of them), "constant", or "" for anything else."""
        match node:
            case ast.Attribute(attr=attribute, value=ast.Name(id=owner)) if owner in self._experiments:
                return "seed" if attribute == "seed" else "constant" if attribute in _FIXED else ""
            case ast.Name(id=name):
                return "constant" if name in self._constants else self._names.get(name, "")
            case ast.Constant():
                return "constant"
            case ast.BinOp(left=left, right=right):
                return self._together([left, right])
            case ast.UnaryOp(operand=value) | ast.NamedExpr(value=value):
                return self._kind(value)
            case ast.Call(func=ast.Attribute(attr="jumped" | "spawn" as method, value=generator)):
                several = "keys" if method == "spawn" else "seed"
                return several if self._kind(generator) == "seed" else ""
            case ast.Call() if self._makes(node):
                return "seed"
            case ast.Call() if split := self._of_key(node, "split"):
                return "keys" if self._kind(split[0]) == "seed" else ""
            case ast.Call(args=arguments, keywords=[]) if arguments and _called(node) in _NUMBERS:
                return self._together(arguments)
        if key := self._key(node):
            source, varying = key
            return "seed" if self._kind(source) in ("seed", "keys") and not varying else ""
        return ""

    def _together(self, nodes: Iterable[ast.expr]) -> str:
        kinds = {self._kind(node) for node in nodes}
        if not kinds <= {"seed", "constant"}:
            return ""
        return "seed" if "seed" in kinds else "constant"

    def _makes(self, call: ast.Call) -> bool:
        """Whether a call makes a generator or a key of what derives from the seed."""
        return MAKERS.fullmatch(self._path(call.func)) is not None and any(map(self._derives, _arguments(call)))

    def _of_key(self, call: ast.Call, function: str) -> list[ast.expr]:
        """The arguments of `random.split` or `random.fold_in`, the key first; none for a `split` of anything else."""
        arguments = _arguments(call)
        of_random = f".{self._path(call.func)}".endswith(f".random.{function}")
        if arguments and (of_random or (_called(call) == function and self._is_seed(arguments[0]))):
            return arguments
        return []

    def _key(self, node: ast.AST) -> tuple[ast.expr, list[ast.expr]] | None:
        """The key or keys that a key is made of, and what chooses it besides constants, e.g. the index of a layer."""
        match node:
            case ast.Call() if fold_in := self._of_key(node, "fold_in"):
                source, *choice = fold_in
            case ast.Subscript(value=ast.Call() as call, slice=index) if split := self._of_key(call, "split"):
                source, choice = split[0], [index]
            case ast.Subscript(value=keys, slice=index) if self._kind(keys) == "keys":
                source, choice = keys, [index]
            case _:
                return None
        if any(isinstance(n, ast.Slice | ast.Tuple) for n in choice):
            return None  # several keys: their number may shape the program
        return source, [part for n in choice for part in self._varying(n)]

    def _varying(self, node: ast.expr) -> list[ast.expr]:
        match node:
            case ast.BinOp(left=left, right=right):
                return [*self._varying(left), *self._varying(right)]
            case ast.UnaryOp(operand=operand):
                return self._varying(operand)
        return [] if self._kind(node) in ("seed", "constant") else [node]

    def _path(self, function: ast.expr) -> str:
        """The dotted path of what is called, unless the file itself defines it."""
        root = function
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or root.id in self._module.bound:
            return ""
        return self._module.path(function) or ast.unparse(function)

    def _seeds(self, call: ast.Call) -> bool:
        return _called(call) in _SEEDING or self._path(call.func).rpartition(".")[2] in _SEEDING

    def _only_seeds(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call) or not self._seeds(node):
            return self._kind(node) == "seed"
        arguments = _arguments(node)
        if _called(node) in SEEDING_METHODS:
            return bool(arguments) and all(self._derives(a) or self._kind(a) == "constant" for a in arguments)
        return any(map(self._derives, arguments))

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if self._only_seeds(node.value) else self.generic_visit(node)

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> ast.AST | list[ast.AST] | None:
        pairs = [(target, value) for target, value in _bindings(node)]
        names = [target.id for target, _ in pairs if isinstance(target, ast.Name)]
        if not pairs or len(names) < len(pairs):
            return self.generic_visit(node)
        if all(self._kind(value) == "seed" or self._key(value) for _, value in pairs):
            # Left out: what nothing reads, and names whose every use is SEED.
            kept = [(t, v) for name, (t, v) in zip(names, pairs, strict=True) if self._is_read(name)]
            return [ast.Assign([target], self._folded(value)) for target, value in kept]
        if self._loads.isdisjoint(names) and node.value is not None and self._only_seeds(node.value):
            return None
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.AST] | None:
        return self._assign(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | list[ast.AST] | None:
        return self._assign(node)

    def _is_read(self, name: str) -> bool:
        return name in self._loads and self._names.get(name) != "seed"

    def _is_seed(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and self._names.get(node.id) == "seed"

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | None:
        return None if self._is_seed(node.target) else self.generic_visit(node)

    def visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", None), ast.Load | None):
            if self._kind(node) == "seed":
                return ast.Name(_SEED, ast.Load())
            if key := self._key(node):
                source, varying = self._folded(key[0]), [self._folded(part) for part in key[1]]
                return ast.Call(source, varying, []) if varying else source
        if isinstance(node, ast.Call):
            self._hand_over_seed(node)
        visited: ast.AST | None = super().visit(node)
        return visited

    def _folded(self, node: ast.expr) -> ast.expr:
        folded = self.visit(node)
        assert isinstance(folded, ast.expr)
        return folded

    def _hand_over_seed(self, call: ast.Call) -> None:
        """Put SEED where a call takes what derives from the seed as its seed."""
        if self._seeds(call) and any(map(self._derives, _arguments(call))):
            call.args, call.keywords = [ast.Name(_SEED, ast.Load())], []
        for keyword in call.keywords:
            if keyword.arg == "seed" and self._derives(keyword.value):
                keyword.value = ast.Name(_SEED, ast.Load())


class _Drop(ast.NodeTransformer):
    """Leaves out the statements that bind nothing but names that only seeds used, and imports that nothing uses."""

    def __init__(self, unused: set[str], loads: set[str]) -> None:
        self._unused, self._loads = unused, loads

    def visit(self, node: ast.AST) -> ast.AST | None:
        match node:
            case ast.Assign(targets=targets) if self._are_unused(targets):
                return None
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target) if self._are_unused([target]):
                return None
            case ast.FunctionDef(name=name) if name in self._unused:
                return None
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                if getattr(node, "module", "") == "__future__":
                    return node
                node.names = [n for n in names if (n.asname or n.name.partition(".")[0]) in self._loads]
                return node if node.names else None
            case ast.ClassDef():  # its attributes may be read by other ways
                return node
        return self.generic_visit(node)

    def _are_unused(self, targets: list[ast.expr]) -> bool:
        leaves = [inner for target in targets for inner, _ in _unpacked(target, target)]
        return all(isinstance(leaf, ast.Name) and leaf.id in self._unused for leaf in leaves)


def _arguments(call: ast.Call) -> list[ast.expr]:
    """By position, then by name; a key that is named comes first."""
    named = sorted(call.keywords, key=lambda keyword: keyword.arg != "key")
    keys = [k.value for k in named if k.arg == "key"]
    return [*keys, *call.args, *(k.value for k in named if k.arg != "key")]


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
