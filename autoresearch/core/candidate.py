"""What can be told from the text of a train.py without running it: lint, identity and size.

The lint catches honest mistakes before any training time is spent on them. It is no sandbox: the guards of the child
process do the rest.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Iterator

from autoresearch.core.derivation import SEEDING_FUNCTIONS, SEEDING_METHODS, derivation
from autoresearch.core.errors import CandidateFailure
from autoresearch.core.seeds import without_seeds
from autoresearch.core.syntax import DEFINITIONS, Module

MAX_BYTES = 256 * 1024


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# No clock (`experiment.progress` is the time), no generator of its own, no files, no processes.
STANDARD_IMPORTS = _words(
    "__future__ abc collections contextlib copy dataclasses enum functools gc itertools logging math numbers operator "
    "typing warnings"
)
_HARNESS_IMPORT = re.compile(r"autoresearch\.(core\.contract|backends\.\w+\.device)\b")
_FORBIDDEN_BUILTINS = _words("__import__ breakpoint compile eval exec exit globals help input locals open quit vars")
# Dunders of honest classes and modules; any other one leads to code objects, namespaces or the import system.
_ALLOWED_DUNDERS = frozenset(
    f"__{name}__"
    for name in _words(
        "abs add all and annotations bool call ceil class complex contains copy debug deepcopy delattr delitem divmod "
        "doc enter eq exit float floor floordiv format ge getattr getitem gt hash iadd iand ifloordiv ilshift imatmul "
        "imod imul index init init_subclass int invert ior ipow irshift isub iter itruediv ixor le len length_hint "
        "lshift lt main matmul missing mod mul name ne neg new next or pos post_init pow qualname radd rand rdivmod "
        "repr reversed rfloordiv rlshift rmatmul rmod rmul ror round rpow rrshift rshift rsub rtruediv rxor set_name "
        "setattr setitem slots str sub truediv trunc version xor"
    )
)
_FRAME_ATTRIBUTES = _words("ag_frame cr_frame f_back f_builtins f_globals f_locals gi_frame tb_frame")
# Modules that others carry along, e.g. `torch.os`.
_CARRIED_MODULES = _words(
    "builtins ctypes importlib inspect multiprocessing os pickle shutil socket subprocess sys threading"
)
# Ways to files and to native code that a framework offers; the audit hook doesn't see those in C.
_FILE_FUNCTIONS = _words(
    "aoti_load_package cpp_extension export_function from_file fromfile genfromtxt hub import_function load "
    "load_inline load_library loadtxt memmap open_memmap package save savetxt savez savez_compressed tofile"
)
_CARRIED = _CARRIED_MODULES | _FILE_FUNCTIONS
_FORBIDDEN_PATHS = frozenset({"gc.get_objects", "gc.get_referents", "gc.get_referrers"})
# Where a framework takes other code for its own operations, which the functions that device.py took would run as well.
_REGISTRY = re.compile(r"(.*\.)?(jax\.(_src|extend|interpreters)|torch\.(_C|_library|library))")
_REGISTRATIONS = _words(
    "_register_lowering py_impl py_kernels register_kernel register_lowering register_torch_dispatch"
)
# `torch.backends.cudnn.benchmark = True` sets a flag that the framework offers; it patches nothing.
_FLAG_MODULES = frozenset({"backends", "config"})

_Problem = tuple[int, str]


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def lint(source: str, allowed_imports: frozenset[str]) -> None:
    """Refuse a train.py that can't be measured, or that plainly reaches around the harness.

    Args:
        allowed_imports: top-level modules of the backend; `STANDARD_IMPORTS` and the contract are always allowed.

    Raises:
        CandidateFailure: status "invalid"; the reason names up to three lines and what is wrong there.
    """
    try:
        size = len(source.encode())
    except UnicodeEncodeError as error:
        line = source.count("\n", 0, error.start) + 1
        raise CandidateFailure("invalid", f"line {line}: train.py is not UTF-8 text") from error
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        raise CandidateFailure("invalid", f"line {line}: train.py holds a NUL character")
    if size > MAX_BYTES:
        raise CandidateFailure("invalid", f"line 1: train.py is {size} bytes long; at most {MAX_BYTES} are allowed")
    try:
        module = Module(_parse(source))
    except SyntaxError as error:
        raise CandidateFailure("invalid", f"line {error.lineno or 1}: syntax error: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise CandidateFailure("invalid", "line 1: train.py is nested too deeply to be parsed") from error
    problems = sorted(
        {
            *_entry_point_problems(module),
            *_import_problems(module, allowed_imports | STANDARD_IMPORTS),
            *_name_problems(module),
            *_seed_problems(module),
            *_patch_problems(module),
        }
    )
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CandidateFailure("invalid", "; ".join(f"line {line}: {text}" for line, text in problems[:3]) + more)


def _entry_point_problems(module: Module) -> Iterator[_Problem]:
    found = [node for node in module.tree.body if isinstance(node, ast.FunctionDef) and node.name == "train"]
    if not found:
        yield 1, "no top-level `def train(experiment)`"
        return
    arguments = found[-1].args
    positional = len(arguments.posonlyargs) + len(arguments.args)
    if not positional or positional - len(arguments.defaults) > 1 or None in arguments.kw_defaults:
        yield found[-1].lineno, "train must be callable with one positional argument: `def train(experiment)`"


def _import_problems(module: Module, allowed: frozenset[str]) -> Iterator[_Problem]:
    # `python train.py` hands over to the harness; in the child, the candidate's __name__ is another.
    started_by_hand = {
        id(inner)
        for node in module.tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        for inner in ast.walk(node)
    }
    for node in module.nodes:
        if isinstance(node, ast.Import):
            imported = [(name.name, name.asname is not None) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "relative import; a train.py stands alone"
                continue
            if any(name.name == "*" for name in node.names):
                yield node.lineno, f"star import from {node.module}; name what is imported"
                continue
            imported = [(f"{node.module}.{name.name}", True) for name in node.names]
        else:
            continue
        for path, renamed in imported:
            top, *rest = path.split(".")
            if top == "autoresearch":
                # A plain `import autoresearch.x` would bind the whole package.
                if not (renamed and _HARNESS_IMPORT.match(path)) and id(node) not in started_by_hand:
                    yield (
                        node.lineno,
                        f"import of {path}; of the harness, only `from autoresearch.core.contract import …`",
                    )
            elif _is_registration(path):
                yield node.lineno, f"import of {path}; a framework's operations must stay as they are"
            elif top not in allowed or not _CARRIED.isdisjoint(rest):
                yield node.lineno, f"import of {path}; allowed: {', '.join(sorted(allowed))}"


def _name_problems(module: Module) -> Iterator[_Problem]:
    """Names and attributes that lead around the import list."""
    for node in module.nodes:
        if isinstance(node, ast.Name):
            shadowed = node.id in module.aliases or node.id in module.bound
            if node.id in _FORBIDDEN_BUILTINS and isinstance(node.ctx, ast.Load) and not shadowed:
                yield node.lineno, f"use of the builtin {node.id}"
            elif _is_forbidden_attribute(node.id):
                yield node.lineno, f"use of {node.id}"
        elif isinstance(node, ast.Attribute):
            path = module.path(node)
            carried = bool(path) and node.attr in _CARRIED
            if _REGISTRY.fullmatch(path) or node.attr in _REGISTRATIONS:
                yield node.lineno, f"use of {path or '.' + node.attr}; a framework's operations must stay as they are"
            elif carried or path in _FORBIDDEN_PATHS or _is_forbidden_attribute(node.attr):
                yield node.lineno, f"use of {path or '.' + node.attr}"
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (node.value in _REGISTRATIONS or _is_forbidden_attribute(node.value))
        ):
            yield node.lineno, f"use of the name {node.value!r}"


def _is_registration(path: str) -> bool:
    return re.match(_REGISTRY.pattern + r"(\.|$)", path) is not None or path.rpartition(".")[2] in _REGISTRATIONS


def _is_forbidden_attribute(name: str) -> bool:
    dunder = re.fullmatch(r"__[a-z_]*[a-z]__", name) is not None
    return (dunder and name not in _ALLOWED_DUNDERS) or name in _FRAME_ATTRIBUTES


def _seed_problems(module: Module) -> Iterator[_Problem]:
    """Seeds that are not made of `experiment.seed`."""
    functions = {node.name: node for node in module.nodes if isinstance(node, ast.FunctionDef)}
    derives = derivation(module)
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        path = module.path(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in SEEDING_METHODS or SEEDING_FUNCTIONS.fullmatch(path):
            seeds = [*node.args, *(keyword.value for keyword in node.keywords)]
        else:
            seeds = [keyword.value for keyword in node.keywords if keyword.arg == "seed"]
            if isinstance(node.func, ast.Name) and node.func.id in functions:
                parameters = functions[node.func.id].args.args
                seeds += [value for p, value in zip(parameters, node.args, strict=False) if p.arg == "seed"]
            if not seeds:
                continue
        if not any(derives(seed) for seed in seeds):
            yield node.lineno, f"{path or ast.unparse(node.func)} with a seed that does not come from experiment.seed"


def _patch_problems(module: Module) -> Iterator[_Problem]:
    """Assignments to attributes of what was imported."""
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            path = module.path(node)
            if path and _FLAG_MODULES.isdisjoint(path.split(".")[1:-1]):
                yield node.lineno, f"assignment to {path}; what is imported must stay as it is"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            path = module.path(node.args[0])
            if path and node.func.id in {"setattr", "delattr"}:
                yield node.lineno, f"{node.func.id} on {path}; what is imported must stay as it is"


# ---------------------------------------------------------------------------------------------------------------------
# Identity and size


def source_hash(source: str) -> str:
    """SHA-256 of the text, 64 hex digits."""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


def normalized_hash(source: str) -> str:
    """The same for two sources that differ in comments, docstrings, formatting and seeds alone, 64 hex digits.

    Other seeds are another draw of the same program: they are the harness's to choose. A text that can't be parsed is
    its own class. Stable within one Python version.
    """
    try:
        return source_hash(ast.dump(without_seeds(_without_docstrings(source))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source_hash(source)


def sameness(source: str, other: str) -> str:
    """What two sources of one `normalized_hash` are to each other: "a duplicate" or "a seed-only edit"."""
    try:
        same = ast.dump(_without_docstrings(source)) == ast.dump(_without_docstrings(other))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        same = True
    return "a duplicate" if same else "a seed-only edit"


def code_size(source: str) -> int:
    """Lines of code, comments, docstrings and formatting apart."""
    return len(_code_lines(source))


def diff_lines(before: str, after: str) -> int:
    """Lines added and removed."""
    a, b = before.splitlines(), after.splitlines()
    steps = difflib.SequenceMatcher(None, a, b).get_opcodes()
    return sum((i2 - i1) + (j2 - j1) for tag, i1, i2, j1, j2 in steps if tag != "equal")


def change_hash(before: str, after: str) -> str:
    """The same for the same edit, of whatever source: a hash of the lines of code taken away and put in, 16 hex digits.

    Comments, docstrings, formatting and the place of the lines don't count. "" where no line of code differs.
    """
    taken, put = Counter(_code_lines(before)), Counter(_code_lines(after))
    lines = [f"-{line}" for line in (taken - put).elements()] + [f"+{line}" for line in (put - taken).elements()]
    return source_hash("\n".join(sorted(lines)))[:16] if lines else ""


def _code_lines(source: str) -> list[str]:
    try:
        text = ast.unparse(_without_docstrings(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        text = source
    return [line.strip() for line in text.splitlines() if line.strip()]


def _without_docstrings(source: str) -> ast.Module:
    tree = _parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (*DEFINITIONS, ast.Module)) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return tree
