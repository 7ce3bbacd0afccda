"""Which calls take a seed, and what derives from `experiment.seed`: for the lint, and for a program's identity."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from autoresearch.core.syntax import Module

SEEDING_METHODS = frozenset({"manual_seed", "manual_seed_all"})
_MAKERS = "default_rng|PRNGKey|RandomState|SeedSequence|MT19937|PCG64|PCG64DXSM|Philox|SFC64"
SEEDING_FUNCTIONS = re.compile(rf".*\.(seed|{_MAKERS})|.*\.random\.key")
# What a generator or a key is made with, a generator of another one included.
MAKERS = re.compile(rf"(.*\.)?({_MAKERS}|Generator)|(.*\.)?random\.key")
_SEED_PARAMETERS = frozenset({"seed", "rng", "key"})  # assumed to derive from experiment.seed inside a function


def derivation(module: Module) -> Callable[[ast.expr], bool]:
    """Whether an expression holds `experiment.seed`, followed by name through the assignments of the whole file.

    So does the `seed` of any parameter, e.g. `exp.seed` in a helper. A parameter called seed, key or rng counts as
    derived: what callers hand to a seed is checked at the call. One of another name does where every call in the file
    hands over what is derived.
    """
    functions = [node for node in module.nodes if isinstance(node, ast.FunctionDef)]
    handed = _arguments(module)
    experiments = {"experiment", *(a.arg for function in functions for a in function.args.args)}
    names = {a.arg for function in functions for a in function.args.args if a.arg in _SEED_PARAMETERS}
    attributes: set[str] = set()

    def derives(expression: ast.expr) -> bool:
        for node in ast.walk(expression):
            if isinstance(node, ast.Name) and node.id in names:
                return True
            if isinstance(node, ast.Attribute):
                owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
                if node.attr in attributes or (node.attr == "seed" and owner in experiments):
                    return True
        return False

    for _ in range(8):  # passes; one follows a chain of assignments in the order of the file
        size = len(names) + len(attributes)
        names.update(name for name, values in handed.items() if values and all(map(derives, values)))
        for node in module.nodes:
            if isinstance(node, ast.keyword) and node.arg and derives(node.value):
                attributes.add(node.arg)  # Config(seed=experiment.seed)
            for target in _targets(node, derives):
                for inner in ast.walk(target):
                    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                        names.add(inner.id)
                    elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                        attributes.add(inner.attr)
        if size == len(names) + len(attributes):
            break
    return derives


def _arguments(module: Module) -> dict[str, list[ast.expr]]:
    """What the calls in the file hand to each parameter of its functions, by the parameter's name."""
    parameters: dict[str, list[str]] = {}
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef):
            own = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            parameters[node.name] = own[own[:1] in (["self"], ["cls"]) :]
    handed: dict[str, list[ast.expr]] = {name: [] for names in parameters.values() for name in names}
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called not in parameters:
            continue
        pairs = [*zip(parameters[called], node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
        for name, value in pairs:
            if name in handed:
                handed[name].append(value)
    return handed


def _targets(node: ast.AST, wanted: Callable[[ast.expr], bool]) -> list[ast.expr]:
    """What a statement assigns to, where its value is wanted."""
    if isinstance(node, ast.Assign):
        return node.targets if wanted(node.value) else []
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        return [node.target] if node.value is not None and wanted(node.value) else []
    if isinstance(node, ast.For | ast.comprehension):
        return [node.target] if wanted(node.iter) else []
    return []
