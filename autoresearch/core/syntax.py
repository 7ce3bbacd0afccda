"""A syntax tree with what its names stand for."""

from __future__ import annotations

import ast

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Module:
    """A syntax tree with what its imports and definitions bind."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.nodes = list(ast.walk(tree))
        self.aliases: dict[str, str] = {}
        """Name → dotted path of what was imported under it."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for name in node.names:
                    top = name.name.partition(".")[0]
                    self.aliases[name.asname or top] = name.name if name.asname else top
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for name in node.names:
                    self.aliases[name.asname or name.name] = f"{node.module}.{name.name}"
        self.bound = {node.name for node in self.nodes if isinstance(node, DEFINITIONS)}
        """Names that the file defines, assigns or takes as parameters, e.g. `input`."""
        self.bound |= {node.arg for node in self.nodes if isinstance(node, ast.arg)}
        self.bound |= {n.id for n in self.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}

    def path(self, node: ast.expr) -> str:
        """The dotted path of an attribute chain that starts at an import, e.g. "torch.nn.Module"; "" for others."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.aliases:
            return ""
        return ".".join([self.aliases[node.id], *reversed(attributes)])
