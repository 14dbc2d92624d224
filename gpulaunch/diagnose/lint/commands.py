"""What a command of known words runs, and what its options mean for cards and ports.

Works on words whose value is known, None for the others. What an option means depends on the
program, so that OPTIONS is a table of programs. A device such as `cuda:1` is one wherever it is.
Of files only those count that are named: what an installed command runs is its authors' business.

`PythonTree` is a Python file's syntax tree, for the checks. It never recurses and never runs
anything: a file may be made to hurt.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

from gpulaunch.containers.options import DAEMONS, OWN, image_in, takes_value
from gpulaunch.diagnose.lint import finding
from gpulaunch.diagnose.lint.finding import MASK, ProgramRun, SetOptions, Suspect, option_name

Words: TypeAlias = Sequence["str | None"]
Kind: TypeAlias = Literal["file", "python", "shell", "module"]
Meaning: TypeAlias = Callable[[str, str], Suspect | None]
"""What is suspect in the value of an option, which comes second; first the words for people."""

_ENDPOINT = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\]):([1-9][0-9]*)")
_CARDS = re.compile(r"[0-9]{1,3}(?:[,:;][0-9]{1,3})*,?")


def _card(shown: str, value: str) -> Suspect | None:
    """For the numbers of cards, counted from 0."""
    number = max(map(int, re.findall("[0-9]+", value))) if _CARDS.fullmatch(value) else 0
    return finding.index(number, shown, "0") if number else None


def _port(shown: str, value: str) -> Suspect | None:
    return finding.port(shown) if value.isdigit() and value != "0" else None


def _endpoint(shown: str, value: str) -> Suspect | None:
    return finding.endpoint(shown) if _ENDPOINT.fullmatch(value) else None


def _mask(program: str) -> Meaning:
    """For cards of the machine, of which the program makes a mask of its own."""

    def suspect(shown: str, value: str) -> Suspect | None:
        own = value == "all" or "VISIBLE_DEVICES" in value or "GPULAUNCH_" in value
        return None if own else finding.launcher_mask(f"{program} {shown}")

    return suspect


# fmt: off
_TORCHRUN: dict[str, Meaning] = {"master_port": _port, "rdzv_endpoint": _endpoint}
_ACCELERATE: dict[str, Meaning] = {
    "gpu_ids": _mask("accelerate launch"), "main_process_port": _port,
}
OPTIONS: dict[str, dict[str, Meaning]] = {
    "torchrun": _TORCHRUN,
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate": _ACCELERATE,
    "accelerate.commands.launch": _ACCELERATE,
    "deepspeed": {
        "include": _mask("deepspeed"), "exclude": _mask("deepspeed"),
        "num_gpus": _mask("deepspeed"), "master_port": _port,
    },
    "sglang.launch_server": {"base_gpu_id": _card},
    "llama-cli": {"main_gpu": _card, "mg": _card},
    "llama-server": {"main_gpu": _card, "mg": _card},
    "lightgbm": {"gpu_device_id": _card},
    "yolo": {"device": _card},
    "gmx": {"gpu_id": _card},
    "gmx_mpi": {"gpu_id": _card},
    "run_alphafold.py": {"gpu_device": _card},
    "relion_refine": {"gpu": _card},
    "relion_refine_mpi": {"gpu": _card},
    "relion_autopick": {"gpu": _card},
}
"""What options mean: program (or the script or module behind python), option, meaning."""
_TEXTUAL = frozenset({
    "echo", "printf", "grep", "egrep", "rg", "sed", "awk", "test", "[", "[[", "git", "cat", "ls",
    "rm", "cp", "mv", "mkdir", "case", "export", "declare", "local", "readonly", "set", "for", "ps",
    "nvidia-smi", "pkill", "pgrep", "curl", "wget", "pip", "conda", "which", "tee", "read", "in",
})
_CONTAINERS = DAEMONS | {"podman"}
_CLEANED = frozenset({"-e", "--cleanenv", "-C", "--containall"})
# fmt: on
_MACHINE_CARD = re.compile(r"(?:device=|nvidia\.com/gpu=)?[0-9]{1,2}(?:,[0-9]{1,2})*")
_ASKED_OF_SLURM = frozenset({"gres", "tres_per_task", "tres_per_job"})  # gpu:2 is how many
_KEY = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,3}")

# ── options ─────────────────────────────────────────────────────────────────────────────────────


def check(words: Words, handed_on: bool = False) -> Iterator[tuple[int, Suspect]]:
    """Yield (number of the word, suspect).

    `handed_on`: the mask reaches apptainer's containers by its variable.
    """
    program = (words[0] or "").rpartition("/")[2] if words else ""
    if program in _TEXTUAL:
        return
    if program in _CONTAINERS:
        yield from _container(words)
        return
    if program in OWN and not handed_on:
        yield from _without_the_mask(words)
    meanings = _meanings(words)
    for at, option, value in settings(words):
        if value is None or option in _ASKED_OF_SLURM:
            continue
        suspect = finding.typed_device(value)
        if suspect is None and option in meanings:
            suspect = meanings[option](_typed(words, at), value)
        if suspect:
            yield at, suspect
    for at, word in enumerate(words[1:], 1):
        if word and (suspect := finding.device(word)) and not _is_value(words, at):
            yield at, suspect


def _meanings(words: Words) -> dict[str, Meaning]:
    """Return the options of the first program in a command that OPTIONS has."""
    for word in words[:12]:
        name = (word or "").rpartition("/")[2]
        if name in OPTIONS or name.endswith((".py", ".sh")):
            return OPTIONS.get(name, {})
    return {}


def is_textual(program: str) -> bool:
    """Tell whether a program's words are texts for people or patterns, whatever they look like."""
    return program in _TEXTUAL and program != "conda"  # conda run


def settings(words: Words) -> Iterator[tuple[int, str, str | None]]:
    """Yield (number of the value's word, option, value) of `--a b`, `--a=b`, Hydra's `x.a=b`."""
    for at, word in enumerate(words):
        if not word or at == 0:
            continue
        name, equals, value = word.partition("=")
        if word.startswith("--") and equals:
            yield at, option_name(name), value
        elif equals and _KEY.fullmatch(name):
            yield at, name.rpartition(".")[2], value
        elif word.startswith("-") and not _DIGITS.fullmatch(word[1:]):
            following = words[at + 1] if at + 1 < len(words) else ""
            if following is None or (following and not following.startswith("-")):
                yield at + 1, option_name(word), following


def _typed(words: Words, at: int) -> str:
    """Return a setting as it was typed, its value left out where that is not known."""
    word = (words[at] or "")[:100]
    return word if "=" in word and not _is_value(words, at) else f"{words[at - 1]} {word}".strip()


def _is_value(words: Words, at: int) -> bool:
    before = words[at - 1] or ""
    return before.startswith("-") and "=" not in before


def _container(words: Words) -> Iterator[tuple[int, Suspect]]:
    """`docker run --gpus all`, or `--gpus device=0`, by any of their spellings."""
    image = image_in(words)
    for at, option, value in settings(words):
        plain = (value or "").strip("\"'")
        if option == "gpus" and plain == "all":
            yield at, finding.all_cards("--gpus all", image)
        elif option == "device" and plain == "nvidia.com/gpu=all":
            yield at, finding.all_cards(f"--device {plain}", image)
        elif option in ("gpus", "device") and _MACHINE_CARD.fullmatch(plain):
            yield at, finding.machine_cards(f"--{option} {plain}", image)
        elif option in ("e", "env") and plain.startswith("NVIDIA_VISIBLE_DEVICES="):
            which = plain.partition("=")[2]
            if which == "all":
                yield at, finding.all_cards(f"--env {value}", image)
            elif _MACHINE_CARD.fullmatch(which):
                yield at, finding.machine_cards(f"--env {value}", image)


def _without_the_mask(words: Words) -> Iterator[tuple[int, Suspect]]:
    """`apptainer exec --nv --cleanenv`: cards, and nothing that says which are the job's."""
    image = image_in(words)
    own = list(words[: words.index(image)]) if image else []
    unsure = any(
        word is None and (before == "--env" or not takes_value(before))
        for before, word in pairwise(own)
    )
    cleaned = next((at for at, word in enumerate(own) if word in _CLEANED), 0)
    if not cleaned or unsure or "--nv" not in own or any(MASK in (word or "") for word in own):
        return
    yield cleaned, finding.mask_left_behind(own[cleaned] or "", image)


# ── what is run ─────────────────────────────────────────────────────────────────────────────────

# fmt: off
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*|ipython3?")
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh", "source", "."})
_LAUNCHERS = frozenset({
    "torchrun", "accelerate", "deepspeed", "kernprof", "horovodrun", "streamlit", "pytest",
    "py.test", "mprof", "scalene", "viztracer", "py-spy",
})
_RUN_MODULES = frozenset({
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "cProfile",
    "pdb", "debugpy", "kernprof", "trace", "coverage", "viztracer", "torch.utils.bottleneck",
})
_WRAPPERS = frozenset({
    "srun", "mpirun", "mpiexec", "conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pdm",
    "nsys", "ncu", "apptainer", "singularity", "xvfb-run", "hatch", "pixi", "rye", "numactl",
    "coverage", "gdb", "valgrind", "perf", "strace", "catchsegv", "script", "dbus-run-session",
})
# fmt: on
_UNDERSTOOD = re.compile(
    r"-[bBdEiIOPqsSuvxeu]+|-[WX].*|--|-o|-eo|-euo|-euxo|--check-hash-based-pycs|-l|--login"
)
_ERREXIT = re.compile(r"-[a-z]*e|errexit")
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs", "-o", "-eo", "-euo", "-euxo"})
_VALUED = frozenset({"-W", "-X", "--check-hash-based-pycs"})


def run_of(words: Words, cwd: str, more: bool = False) -> ProgramRun | None:
    """Return the file that a command runs, program first. `more`: see SetOptions."""
    start = _start(words)
    if start is not None and start[1] == "module" and start[2] in _RUN_MODULES:
        start = _of_launcher(words, start[0] + 1)
    if start is None:
        return None
    number, kind, what = start
    rest = words[number + 1 :]
    names = {option for _, option, _ in settings(["", *rest])}
    names |= {option_name(word) for word in rest if word and word[:1] == "-"}
    own = words[0] not in ("source", ".") and not any(
        _ERREXIT.match(word or "") for word in words[1:number]
    )
    return ProgramRun(kind, what, SetOptions(frozenset(names), more), cwd, number, own)


def _start(words: Words) -> tuple[int, Kind, str] | None:
    """Where the script's name stands, its kind and what it is."""
    for number, word in enumerate(words[:40]):
        if word is None and number == 0:
            return None
        if word is None:
            continue
        name = word.rpartition("/")[2]
        if _PYTHON.fullmatch(name):
            return _of_python(words, number + 1)
        if name in _SHELLS and number == 0:
            return _of_shell(words, number + 1)
        if name in _LAUNCHERS:
            return _of_launcher(words, number + 1)
        if number == 0 and name not in _WRAPPERS:
            if word.endswith(".py"):
                return number, "python", word
            return (number, "file", word) if "/" in word else None
        if number and word.endswith(".py"):
            return number, "python", word
        if number and name in ("bash", "sh"):
            return _of_shell(words, number + 1)
    return None


def _of_python(words: Words, at: int) -> tuple[int, Kind, str] | None:
    while at < len(words):
        word = words[at]
        if word is None:
            return None
        if word in ("-c", "-"):
            return None
        if word == "-m":
            what = words[at + 1] if at + 1 < len(words) else None
            return None if what is None else (at + 1, "module", what)
        if not word.startswith("-"):
            return at, "python", word
        at += 2 if word in _VALUED else 1
    return None


def _of_shell(words: Words, at: int) -> tuple[int, Kind, str] | None:
    while at < len(words):
        word = words[at]
        if word is None or re.fullmatch(r"-[a-z]*c", word):
            return None
        if not word.startswith(("-", "+")):
            return at, "shell", word
        at += 2 if word in ("-o", "+o", "-eo") or re.fullmatch(r"-[a-z]*o", word) else 1
    return None


def _of_launcher(words: Words, at: int) -> tuple[int, Kind, str] | None:
    """Return the first script; or the module behind `-m`."""
    for number in range(at, len(words)):
        word = words[number]
        if word in ("-m", "--module") and number + 1 < len(words):
            what = words[number + 1]
            return None if what is None else (number + 1, "module", what)
        if word and word.endswith(".py"):
            return number, "python", word
    return None


def of_interpreter(words: Words, number: int) -> bool:
    """Tell whether every word between an interpreter and its script is a known option."""
    valued = False
    for word in words[1:number]:
        if word is None:
            return False
        if not valued and not _UNDERSTOOD.fullmatch(word):
            return False
        valued = not valued and word in _WITH_VALUE
    return not valued


# ── The syntax tree of a Python file ──────────────────────────────────────────────────────────────

_DEEP = 100_000
_LARGE = 32 << 10
_FIELDS = 4000
_CLIMB = 500
_WORDS = 300
Value: TypeAlias = str | int | bool

_NO_PARTS = (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)
_COUNTS = re.compile(
    r"device_?count|n_?gpus?\b|num_?(?:gpus?|devices?|cuda)|gpu_?count|n_?devices?\b|multi_?gpu"
    r"|multi_?(?:device|accelerator)|skip_?if\w*gpus?|lt_\d?x?_?gpu|require\w*gpus?|world_?size|gpus\b|devices\b|data_?parallel|distributed|parallel",
    re.IGNORECASE,
)
_LEAVES_BLOCK = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_EXITS = frozenset({"exit", "_exit", "skip", "abort", "fail", "skipTest", "quit"})


def parse(text: str) -> ast.Module | None:
    """Return the tree of a file's text, or None where Python cannot read it, or not quickly.

    What Python itself refuses: Python 2, nested too deep, not text.
    Python 3.11 and older take quadratic time for f-strings with thousands of fields.
    """
    if len(text) > _LARGE and text.count("{") > _FIELDS:
        return None
    if sys.version_info < (3, 11) and len(text) > _DEEP:
        return None  # Python 3.10 has no bound for the depth of a long `a+a+...`
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes and the like, said when the file runs
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            return None


class PythonTree:
    """What the checks ask of a tree: parents, names, constants, guards.

    `main`: the file is run itself, rather than imported.
    """

    def __init__(self, module: ast.Module, main: bool) -> None:
        self.main = main
        self.nodes: list[ast.AST] = []
        self.parents: dict[ast.AST, ast.AST] = {}
        self.aliases: dict[str, str] = {}
        self.bound: dict[str, ast.expr] = {}
        self.assigned: list[tuple[str, ast.expr]] = []
        self.iterated: list[tuple[str, ast.expr]] = []
        self._collect(module)
        self._names()

    # ── collecting ──────────────────────────────────────────────────────────────────────────────

    def _collect(self, module: ast.Module) -> None:
        """Every node in the order of the source, parts that never run left out."""
        pending: list[ast.AST] = [module]
        while pending:
            node = pending.pop()
            self.nodes.append(node)
            children = [c for c in ast.iter_child_nodes(node) if not isinstance(c, _NO_PARTS)]
            if isinstance(node, ast.If):
                dead = self._dead(node)
                children = [child for child in children if child not in dead]
            for child in children:
                self.parents[child] = node
            pending.extend(reversed(children))

    def _dead(self, node: ast.If) -> list[ast.stmt]:
        """Return the branch that is never taken."""
        test, negated = node.test, False
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, negated = test.operand, not negated
        if isinstance(test, ast.Constant):
            return node.orelse if bool(test.value) != negated else node.body
        if isinstance(test, ast.Name | ast.Attribute) and last_name(test) == "TYPE_CHECKING":
            return node.orelse if negated else node.body
        if not self.main and isinstance(test, ast.Compare) and _asks_for_main(test):
            return node.body
        return []

    def _names(self) -> None:
        stored: Counter[str] = Counter()
        for node in self.nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                stored[node.id] += 1
            elif isinstance(node, ast.arg):
                stored[node.arg] += 2
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = (target.id for target in targets if isinstance(target, ast.Name))
                self.assigned += [(name, node.value) for name in names]
            elif isinstance(node, ast.AugAssign):
                stored[last_name(node.target)] += 1
            elif isinstance(node, ast.For | ast.comprehension):
                self._iterate(node.target, node.iter, stored)
        self.bound = {name: value for name, value in self.assigned if stored[name] == 1}

    def _iterate(self, target: ast.expr, iterable: ast.expr, stored: Counter[str]) -> None:
        """Note that a loop gives its names many values."""
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        for name in map(last_name, parts):
            stored[name] += 1
            self.iterated.append((name, iterable))

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for name in node.names:
            if isinstance(node, ast.Import):
                whole = name.name if name.asname else name.name.partition(".")[0]
                self.aliases.setdefault(name.asname or whole, whole)
            elif node.module and not node.level:
                self.aliases.setdefault(name.asname or name.name, f"{node.module}.{name.name}")

    # ── what things are called ──────────────────────────────────────────────────────────────────

    def dotted(self, node: ast.AST) -> str:
        """`os.environ` for what stands for it here, imports looked through; "" for no name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute) and len(parts) < 10:
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.aliases.get(node.id, node.id), *reversed(parts)])

    # ── what values are known ───────────────────────────────────────────────────────────────────

    def value(self, node: ast.AST | None, depth: int = 0) -> Value | None:
        """Return the text or number that an expression surely stands for."""
        if depth > 5 or node is None:
            return None
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str | int) else None
        if isinstance(node, ast.Name):
            return self.value(self.bound.get(node.id), depth + 1)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = self.value(node.operand, depth + 1)
            return -number if isinstance(number, int) else None
        if isinstance(node, ast.JoinedStr):
            return self._joined([self._piece(part, depth) for part in node.values[:20]])
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            both = [self.value(side, depth + 1) for side in (node.left, node.right)]
            return self._joined(both) if any(isinstance(side, str) for side in both) else None
        if isinstance(node, ast.Call):
            return self._called(node, depth)
        return None

    def _piece(self, part: ast.expr, depth: int) -> Value | None:
        if isinstance(part, ast.FormattedValue):
            return None if part.format_spec else self.value(part.value, depth + 1)
        return self.value(part, depth + 1)

    @staticmethod
    def _joined(parts: list[Value | None]) -> str | None:
        return None if None in parts else "".join(str(part) for part in parts)[:10_000]

    def _called(self, node: ast.Call, depth: int) -> Value | None:
        """Return what `str(...)` or `int(...)` makes of a known value."""
        if not isinstance(node.func, ast.Name) or len(node.args) != 1:
            return None
        inner = self.value(node.args[0], depth + 1)
        if inner is None or node.func.id not in ("str", "int"):
            return None
        plain = str(inner).strip()
        if node.func.id == "str":
            return str(inner)
        return int(plain) if re.fullmatch(r"[0-9]{1,9}", plain) else None

    # ── whether it is ever reached ──────────────────────────────────────────────────────────────

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(child, parent) from the node to the file's top."""
        for _ in range(_CLIMB):
            parent = self.parents.get(node)
            if parent is None:
                return
            yield node, parent
            node = parent

    def tests_around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the conditions to reach a node: `if`s around it, or before it that leave."""
        for child, parent in self.above(node):
            if isinstance(parent, ast.If | ast.IfExp | ast.While) and child is not parent.test:
                yield parent.test
            elif isinstance(parent, ast.BoolOp):
                yield from (v for v in parent.values[:20] if v is not child)
            elif isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from parent.decorator_list
            if isinstance(child, ast.stmt):
                yield from _left_before(child, parent)

    def assigned_from(self, node: ast.AST) -> bool:
        """Tell whether the value of this expression is kept, to be put back later perhaps."""
        parent = self.parents.get(node)
        return isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr)

    def counts_cards(self, node: ast.AST) -> bool:
        """Tell whether a node is reached only after a look at how many cards there are."""
        return any(_COUNTS.search(words_in(test)) for test in self.tests_around(node))

    def asks_for(self, node: ast.AST, text: str) -> bool:
        """Tell whether a condition around a node speaks of `text`."""
        return any(text in words_in(test) for test in self.tests_around(node))


def _left_before(child: ast.stmt, parent: ast.AST) -> Iterator[ast.AST]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if not isinstance(block, list) or child not in block:
            continue
        for before in block[: block.index(child)][-50:]:
            if isinstance(before, ast.If) and not _leaves(before.body[-1]):
                continue
            if isinstance(before, ast.If | ast.Assert):
                yield before.test


def _leaves(statement: ast.stmt) -> bool:
    if isinstance(statement, _LEAVES_BLOCK):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and last_name(call.func) in _EXITS


def parts_in(node: ast.AST, most: int) -> Iterator[ast.AST]:
    """Yield an expression and what is in it, `most` nodes at most."""
    pending = [node]
    while pending and most:
        inner, most = pending.pop(), most - 1
        yield inner
        pending.extend(ast.iter_child_nodes(inner))


def words_in(node: ast.AST) -> str:
    """Return the names and texts in an expression, as far as it is of a usual size."""
    found: list[str] = []
    for inner in parts_in(node, _WORDS):
        if isinstance(inner, ast.Name):
            found.append(inner.id)
        elif isinstance(inner, ast.Attribute):
            found.append(inner.attr)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            found.append(inner.value[:200])
    return " ".join(found)


def last_name(node: ast.AST) -> str:
    """`device` of `torch.device`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _asks_for_main(test: ast.Compare) -> bool:
    sides = [test.left, *test.comparators]
    name = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    main = any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)
    return name and main and isinstance(test.ops[0], ast.Eq)


# ── what a module defines ───────────────────────────────────────────────────────────────────────

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_MAKES_NAMES = frozenset({"globals", "exec", "setattr", "eval", "vars"})


def defined(text: str) -> set[str] | None:
    """Return the names that a module has once it was run; None if its text cannot tell."""
    module = parse(text)
    if module is None:
        return None  # of another version of Python, perhaps
    names: set[str] = set()
    for node in _at_top(module.body):
        found = _bound_by(node)
        if found is None:
            return None
        names.update(found)
    return None if "__getattr__" in names else names


def _at_top(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Everything that runs with the module; of functions and classes, that they are there."""
    stack = list(body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _NESTED):
            stack.extend(ast.iter_child_nodes(node))


def _bound_by(node: ast.AST) -> list[str] | None:
    """Return the names that one node binds; None where it may bind any."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()):
            return [name]
        case ast.Name(id=name) if name in _MAKES_NAMES:
            return None
        case ast.alias(name="*"):
            return None
        case ast.alias(name=name, asname=other):
            return [other or name.partition(".")[0]]
        case ast.Attribute(attr="modules" | "__dict__"):
            return None
    return []
