"""Where a Python file spreads over several cards, or divides by how many there are."""

from __future__ import annotations

import ast
import re

from gpulaunch.diagnose.lint import wording
from gpulaunch.diagnose.lint.devices import Found, defaults_of
from gpulaunch.diagnose.lint.tree import PythonTree, last_name, words_in

_MAPS = frozenset({"auto", "balanced", "balanced_low_0", "sequential"})
_DATA_PARALLEL = frozenset({"torch.nn.DataParallel", "torch.nn.parallel.DataParallel"})
_TRAINERS = frozenset({"Trainer", "Fabric", "LightningCLI", "LitTrainer"})
_STARTERS = frozenset({"spawn", "start_processes"})
_ASKS = re.compile("cuda|gpu|device|count", re.IGNORECASE)


def check(tree: PythonTree, node: ast.AST) -> Found:
    if isinstance(node, ast.Call):
        yield from _call(tree, node)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if tree.value(key) == "device_map":
                yield from _device_map(tree, value)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for name, default in defaults_of(node):
            if name == "device_map":
                yield from _device_map(tree, default)
    elif isinstance(node, ast.BinOp):
        yield from _divided(tree, node)


def _call(tree: PythonTree, node: ast.Call) -> Found:
    name, whole = last_name(node.func), tree.dotted(node.func)
    named = any(keyword.arg == "device_ids" for keyword in node.keywords)
    if whole in _DATA_PARALLEL and not named and not tree.counts_cards(node):
        yield node, wording.data_parallel()
    for keyword in node.keywords:
        number = tree.value(keyword.value)
        if keyword.arg == "device_map":
            yield from _device_map(tree, keyword.value)
        elif keyword.arg in ("devices", "gpus") and name in _TRAINERS:
            if isinstance(number, str) and number.isdigit():
                number = int(number)
            if type(number) is int and number > 1 and not _on_cpu(tree, node):
                yield keyword.value, wording.count(number, f"{keyword.arg}={number}")
        elif keyword.arg == "tensor_parallel_size" and type(number) is int and number > 1:
            yield keyword.value, wording.count(number, f"{keyword.arg}={number}")
        elif keyword.arg == "nprocs" and name in _STARTERS and _counted(tree, keyword.value):
            if tree.counts_cards(keyword.value):
                continue
            yield keyword.value, wording.no_cards("nprocs=device_count() starts no process at all")


def _on_cpu(tree: PythonTree, node: ast.Call) -> bool:
    return any(
        keyword.arg == "accelerator" and tree.value(keyword.value) in ("cpu", "tpu", "mps")
        for keyword in node.keywords
    )


def _device_map(tree: PythonTree, value: ast.expr) -> Found:
    for leaf in tree.leaves(value):
        text = tree.value(leaf)
        if isinstance(text, str) and text in _MAPS and not tree.counts_cards(leaf):
            yield leaf, wording.auto_map(text)


def _divided(tree: PythonTree, node: ast.BinOp) -> Found:
    """`rank % torch.cuda.device_count()`."""
    if not isinstance(node.op, ast.Mod | ast.Div | ast.FloorDiv):
        return
    if isinstance(tree.value(node.left), str) or not _counted(tree, node.right):
        return
    if any(_ASKS.search(words_in(test)) for test in tree.tests_around(node)):
        return
    sign = {ast.Mod: "%", ast.Div: "/", ast.FloorDiv: "//"}[type(node.op)]
    why = f"the right side of {sign} is the number of cards, and device_count() is 0"
    yield node, wording.no_cards(why)


def _counted(tree: PythonTree, node: ast.expr) -> bool:
    """Tell whether a value is `torch.cuda.device_count()`, also by a name for nothing else."""
    if isinstance(node, ast.Name):
        bound = tree.bound.get(node.id)
        if bound is None or isinstance(bound, ast.Name):
            return False
        return _counted(tree, bound) and not tree.counts_cards(bound)
    return isinstance(node, ast.Call) and tree.dotted(node.func) == "torch.cuda.device_count"
