"""Where a Python file asks for a card by its number: `cuda:1`, `.cuda(1)`, `device_ids=[0, 1]`.

A text that is nothing but `cuda:1` is a device where it is handed to a call, or given to a name or
key that says so; elsewhere (messages, comparisons, choices) it is only a text. Numbers are looked
at only where the call or the keyword leaves no doubt.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeAlias

from gpulaunch.diagnose.lint import wording
from gpulaunch.diagnose.lint.finding import Suspect, option_name
from gpulaunch.diagnose.lint.tree import PythonTree, last_name

Found: TypeAlias = Iterator[tuple[ast.AST, Suspect]]

_DEVICE_NAME = re.compile(
    r"(?:.*_)?(?:device|devices|dev|gpu|gpus|cuda|accelerator|map_location|device_map|main_gpu)"
    r"(?:_?(?:ids?|index|idx|str|string|name|map|type|0|1|2|3))?|(?:to_)?(?:cuda|gpu)",
)
_NUMBER_KEYWORD = re.compile(
    r"(?:cuda_|gpu_|main_|output_|target_)?(?:device_ids?|device_index|gpu_ids?|gpu_index|device)"
    r"|gpu|devices|gpus|main_gpu|gpu_device_id|cuda_device|gpu_device"
)
_LIST_ONLY = frozenset({"devices", "gpus"})
# fmt: off
_TEXT_CALLS = frozenset({
    "print", "format", "info", "debug", "warning", "warn", "error", "exception", "critical", "log",
    "write", "startswith", "endswith", "replace", "removeprefix", "split", "rsplit", "strip",
    "partition", "index", "find", "count", "join", "match", "search", "sub", "fullmatch", "findall",
    "compile", "isinstance", "skip", "skipif", "fail", "xfail", "raises", "parametrize", "param",
    "add_argument", "option", "Option", "Argument", "argument", "Field", "field", "echo", "secho",
    "len", "lower", "upper", "exit", "pprint", "getenv", "setenv", "get", "getattr", "deprecated",
    "Literal", "repr", "str", "assertEqual", "assertIn", "assertTrue", "assertFalse", "hash",
    "encode", "remove", "discard", "repeat", "set", "frozenset", "sorted", "title", "markdown",
})
_INDEX_CALLS = frozenset({
    "set_device", "get_device_properties", "get_device_name", "get_device_capability",
    "mem_get_info", "select_device", "require_gpu", "prefer_gpu", "memory_allocated",
    "max_memory_allocated", "memory_reserved", "reset_peak_memory_stats", "synchronize",
})
_INDEX_NAMES = frozenset({"torch.cuda.device", "mxnet.gpu", "mx.gpu"})
_LISTERS = frozenset({
    "jax.devices", "jax.local_devices", "list_physical_devices", "list_logical_devices",
    "numba.cuda.gpus", "cuda.gpus", "cuda.list_devices",
})
_FRAMEWORKS = frozenset({
    "torch", "tensorflow", "jax", "transformers", "cupy", "numba", "xgboost", "lightgbm",
    "catboost", "paddle", "mxnet", "vllm", "faiss", "sentence_transformers", "diffusers", "pycuda",
    "cudf", "cuml", "ultralytics", "llama_cpp", "pytorch_lightning", "lightning", "accelerate",
    "spacy", "openmm", "simtk", "deepspeed", "peft", "flax", "keras", "torchvision", "torchaudio",
    "timm", "whisper", "esm", "fairseq", "dgl", "torch_geometric", "pyrosetta", "chai_lab", "boltz",
    "igfold", "evo2", "vortex", "petals", "langchain_community", "easyocr", "insightface", "flair",
})
_OTHER_DEVICES = frozenset({"sounddevice", "sd", "cv2", "pyaudio", "serial", "usb", "evdev"})
# fmt: on
_OPENMM = re.compile(r"(?:Cuda|OpenCL|HIP)?DeviceIndex")
_NUMBERS = re.compile(r"\d{1,3}(?:[,:]\s*\d{1,3})*")


def check(tree: PythonTree, node: ast.AST) -> Found:
    """Yield what this node asks for by number, each at the text or number that does."""
    if isinstance(node, ast.Call):
        yield from _call(tree, node)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _given(tree, _target_name(tree, target), node.value)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _annotated(tree, node, node.value)
    elif isinstance(node, ast.Dict):
        yield from _dict(tree, node)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _defaults(tree, node)
    elif isinstance(node, ast.Return) and node.value is not None:
        function = _function_of(tree, node)
        yield from _given(tree, function.rpartition("get_")[2], node.value)
    elif isinstance(node, ast.For):
        yield from _given(tree, last_name(node.target), node.iter)
    elif isinstance(node, ast.Subscript):
        yield from _subscript(tree, node)


def compared(tree: PythonTree, node: ast.AST) -> bool:
    """Tell whether a value is only compared, or part of a message."""
    for _, parent in tree.above(node):
        if isinstance(parent, ast.Compare | ast.Assert | ast.Raise):
            return True
        if isinstance(parent, ast.stmt):
            break
    return False


def uses_cards(tree: PythonTree) -> bool:
    """Tell whether a number called `device` can be a card at all in this file."""
    return any(name.partition(".")[0] in _FRAMEWORKS for name in tree.aliases.values())


# ── texts ───────────────────────────────────────────────────────────────────────────────────────


def texts(tree: PythonTree, value: ast.expr | None, unless: frozenset[str] = frozenset()) -> Found:
    """Yield each text in a value that is a device."""
    for leaf in tree.leaves(value):
        text = tree.value(leaf)
        suspect = wording.device(text, unless) if isinstance(text, str) else None
        if suspect:
            yield leaf, suspect


def _given(
    tree: PythonTree, name: str, value: ast.expr, unless: frozenset[str] = frozenset()
) -> Found:
    """Yield what is suspect in the value of a name, key or parameter that says it is a device."""
    if _DEVICE_NAME.fullmatch(name.lower()) and not isinstance(value, ast.Dict):
        yield from texts(tree, value, unless)


def _target_name(tree: PythonTree, target: ast.expr) -> str:
    if isinstance(target, ast.Subscript):
        key = tree.value(target.slice)
        return key if isinstance(key, str) else ""
    return last_name(target)


def _annotated(tree: PythonTree, node: ast.AnnAssign, value: ast.expr) -> Found:
    """Yield what is suspect in a name with a type: in a class it may be an option's default."""
    name = last_name(node.target)
    in_class = isinstance(tree.parents.get(node), ast.ClassDef)
    unless = frozenset({name}) if in_class else frozenset()
    if isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg == "default":
                yield from _given(tree, name, keyword.value, unless)
    else:
        yield from _given(tree, name, value, unless)


def _defaults(tree: PythonTree, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Found:
    """Parameters' defaults; Fire, Typer and their kin make options of them."""
    for name, value in defaults_of(node):
        if isinstance(value, ast.Call) and last_name(value.func) in ("Option", "Argument"):
            value = value.args[0] if value.args else value
        yield from _given(tree, name, value, frozenset({name}))


def defaults_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[tuple[str, ast.expr]]:
    """Parameters that have a default, with it."""
    named = [*node.args.posonlyargs, *node.args.args]
    named = [*named[len(named) - len(node.args.defaults) :], *node.args.kwonlyargs]
    pairs = zip(named, [*node.args.defaults, *node.args.kw_defaults], strict=True)
    return [(argument.arg, default) for argument, default in pairs if default is not None]


def _function_of(tree: PythonTree, node: ast.AST) -> str:
    for _, parent in tree.above(node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            return parent.name
    return ""


# ── calls ───────────────────────────────────────────────────────────────────────────────────────


def _call(tree: PythonTree, node: ast.Call) -> Found:
    name = last_name(node.func)
    if name in ("add_argument", "option", "Option") or name.startswith("DEFINE_"):
        yield from _option_default(tree, node)
        return
    if name not in _TEXT_CALLS:
        for argument in node.args:
            listed = isinstance(argument, ast.List | ast.Tuple | ast.Set)
            if not listed or _DEVICE_NAME.fullmatch(name.lower()):
                yield from texts(tree, argument)
    if name == "append" and isinstance(node.func, ast.Attribute) and node.args:
        yield from _given(tree, last_name(node.func.value), node.args[0])
    yield from _numbered(tree, node, name)
    for keyword in node.keywords:
        if keyword.arg and name not in ("parametrize", "param"):
            yield from _given(tree, keyword.arg, keyword.value)
            yield from _keyword_number(tree, node, keyword.arg, keyword.value)


def _option_default(tree: PythonTree, node: ast.Call) -> Found:
    """`add_argument("--device", default="cuda:1")`: unless the command line sets it."""
    names = [value for argument in node.args if isinstance(value := tree.value(argument), str)]
    options = [name for name in names if name.startswith("-")]
    defaults = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
    if last_name(node.func).startswith("DEFINE_"):
        options, defaults = names[:1], node.args[1:2]
    unless = frozenset(option_name(name) for name in options)
    for default in defaults:
        yield from texts(tree, default, unless)
        number = tree.value(default)
        strict = any(re.fullmatch(r"(gpu|device|cuda)_(id|index|device)", name) for name in unless)
        if strict and type(number) is int and number > 0:
            yield default, wording.index(number, f"{options[0]} {number}", "0", unless)


def _numbered(tree: PythonTree, node: ast.Call, name: str) -> Found:
    """Yield calls whose first number is a card: `.cuda(1)`, `torch.cuda.set_device(1)`."""
    first = node.args[0] if node.args else None
    whole = tree.dotted(node.func)
    wanted: ast.expr | None = None
    if isinstance(node.func, ast.Attribute) and name in ("cuda", "to") and len(node.args) == 1:
        wanted = first if name == "to" or not whole.startswith("numba") else None
    elif whole == "torch.device":
        wanted = node.args[1] if len(node.args) > 1 else first
        wanted = next((k.value for k in node.keywords if k.arg == "index"), wanted)
    elif name in _INDEX_CALLS or whole in _INDEX_NAMES or whole.endswith("cuda.Device"):
        wanted = first
    elif name.startswith("index_cpu_to_gpu") and len(node.args) > 1:
        wanted = node.args[1]
    elif name == "setPropertyDefaultValue" and _OPENMM.fullmatch(str(tree.value(first))):
        yield from (_openmm(tree, node.args[1]) if len(node.args) > 1 else ())
    if uses_cards(tree) or name == "cuda":
        dot = "." if name in ("to", "cuda") else ""
        yield from _number(tree, wanted, f"{dot}{name}({{}})")


def _number(tree: PythonTree, value: ast.expr | None, shown: str) -> Found:
    if value is not None and (number := _card(tree, value)):
        yield value, wording.index(number, shown.format(number), shown.format(0))


def _card(tree: PythonTree, value: ast.expr | None) -> int:
    """Return the number of a card other than the first; 0 for anything else."""
    number = tree.value(value)
    return number if type(number) is int and 0 < number < 1000 else 0


def _keyword_number(tree: PythonTree, node: ast.Call, key: str, value: ast.expr) -> Found:
    """`device_ids=[0, 1]`, `gpu_id=1`, `device="0,1"`, `max_memory={0: ..., 1: ...}`."""
    root = tree.dotted(node.func).partition(".")[0]
    if not uses_cards(tree) or root in _OTHER_DEVICES:
        return
    if key in ("max_memory", "device_map"):
        yield from _map(tree, key, _followed(tree, value))
    if not _NUMBER_KEYWORD.fullmatch(key):
        return
    if isinstance(value, ast.List | ast.Tuple):
        yield from _listed(tree, key, value)
        return
    text = tree.value(value)
    if isinstance(text, str):
        if (number := _largest(text)) and (not text.isdigit() or key not in _LIST_ONLY):
            yield value, wording.index(number, f'{key}="{text}"', "0")
    elif key not in _LIST_ONLY:
        yield from _number(tree, value, f"{key}={{}}")


def _largest(text: str) -> int:
    """Return the largest number of `1` or `0,2`; 0 for any other text."""
    return max(map(int, re.findall(r"\d+", text))) if _NUMBERS.fullmatch(text) else 0


def _listed(tree: PythonTree, key: str, value: ast.List | ast.Tuple) -> Found:
    numbers = [number for item in value.elts[:100] if type(number := tree.value(item)) is int]
    if numbers and 0 < max(numbers) < 1000:
        shown = ", ".join(map(str, numbers[:8]))
        yield value, wording.index(max(numbers), f"{key}=[{shown}]", f"{key}=[0]")


def _followed(tree: PythonTree, value: ast.expr) -> ast.expr:
    return tree.bound.get(value.id, value) if isinstance(value, ast.Name) else value


def _map(tree: PythonTree, key: str, value: ast.expr) -> Found:
    """Yield what is suspect in a dictionary of cards: keys of max_memory, values of device_map."""
    if not isinstance(value, ast.Dict):
        return
    for item in value.keys if key == "max_memory" else value.values:
        if item is not None and (number := _card(tree, item)):
            yield item, wording.index(number, f"card {number} in {key}", "0")
            return
        if key == "device_map":
            yield from texts(tree, item)


# ── dictionaries, subscripts ────────────────────────────────────────────────────────────────────


def _dict(tree: PythonTree, node: ast.Dict) -> Found:
    for key, value in zip(node.keys, node.values, strict=True):
        name = tree.value(key)
        if not isinstance(name, str) or len(name) > 60:
            continue
        if _OPENMM.fullmatch(name):
            yield from _openmm(tree, value)
        elif name in ("gpu_id", "gpu_device_id", "device_id", "main_gpu") and uses_cards(tree):
            yield from _number(tree, value, f"{name}: {{}}")
        else:
            yield from _given(tree, name, value)


def _openmm(tree: PythonTree, value: ast.expr) -> Found:
    text = tree.value(value)
    if number := _largest(str(text)):
        yield value, wording.index(number, f"DeviceIndex {text}", "0")


def _subscript(tree: PythonTree, node: ast.Subscript) -> Found:
    """`jax.devices()[1]`, also through a name."""
    value = _followed(tree, node.value)
    if isinstance(value, ast.Call):
        value = value.func
    name = tree.dotted(value)
    if name in _LISTERS or name.rpartition(".")[2] in _LISTERS:
        yield from _number(tree, node.slice, f"{last_name(value)}()[{{}}]")
