"""A torch.export program, saved on whatever card, loaded onto this one.

torch.export.load puts each tensor where it was when it was exported: a program of cuda:1 cannot be
loaded where only cuda:0 exists. So the device records inside the file are rewritten first, and the
loaded program is looked through afterwards.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch

from gpulaunch.torch.archive import Source, check_kind, moved, name_of, opened
from gpulaunch.torch.devices import is_card, normal, same
from gpulaunch.torch.errors import ExportedProgramError
from gpulaunch.torch.overlay import Overlay
from gpulaunch.torch.records import Device, Moves
from gpulaunch.torch.walk import Walk

_MAX_SHOWN = 20


def load_exported(
    source: Source,
    device: torch.device | str = "cuda:0",
    *,
    extra_files: dict[str, Any] | None = None,
) -> torch.export.ExportedProgram:
    """Return the program in `source` (a path or an open file), all of it on `device`.

    Whatever cards it was exported on become `device`: weights, constants, sample inputs, device
    arguments in the graph and in its subgraphs (cond, while_loop, autocast regions). What was on
    the CPU beside them stays there; a program that was exported on the CPU alone moves as a whole.
    No other card is touched. Programs of torch 2.6 and newer, as far as the torch here reads them;
    like torch.export.load it unpickles: load only what you trust.

    Raises ExportedProgramError where `device` is not there, where a record of another card is left
    in the program (it is named), and for what is no such program (TorchScript: with the lines that
    name a card). OSError as open() does.

    A program of 100 MiB takes 0.12 s where torch.export.load takes 0.10 s: weights are neither
    copied nor looked at. Files of torch 2.8 and older (their weights are an archive inside the
    archive, which is in memory once more meanwhile): 0.5 s, where torch.export.load takes 0.2 s.
    """
    target = normal(device)
    name = name_of(source)
    with opened(source) as stream:
        check_kind(stream, name)
        check_present(target)
        record = Device(target.type, target.index)
        moves = Moves(to=record)
        copy = moved(stream, moves)
        of_the_cpu = not any(one.is_card for one in moves.found)
        if of_the_cpu and is_card(target):
            copy = moved(stream, Moves(to=record, cpu_too=True))
        program = _loaded(copy, name, extra_files)
    if of_the_cpu:
        move_tensors(program, target)
    left = list(elsewhere(program, target))
    if left:
        raise ExportedProgramError(_report(name, target, left))
    return program


def _loaded(copy: Overlay, name: str, extra_files: dict[str, Any] | None) -> Any:
    # torch 2.6 knows an autocast region's operator only once this is imported.
    importlib.import_module("torch._higher_order_ops.wrap")
    try:
        return torch.export.load(copy, extra_files=extra_files)
    except Exception as error:
        raise ExportedProgramError(
            f"{name}: torch {torch.__version__} cannot load this program: {_first_line(error)} "
            "(a file of a newer torch needs that torch, or to be exported again)"
        ) from error


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no text').splitlines()[0]}"


def check_present(device: torch.device) -> None:
    """Raise ExportedProgramError where this process cannot put tensors on a device."""
    if device.type != "cuda":
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) < count:
        return
    if not count:
        seen = "this torch sees no card (gpulaunch doctor says why)"
    else:
        seen = f"this process sees cuda:0{f' to cuda:{count - 1}' if count > 1 else ''} alone"
    raise ExportedProgramError(
        f"{device} is not here: {seen}; a job's own card is cuda:0, whatever its number outside"
    )


# ── What a file's records do not say: pickled tensors of the CPU ────────────────────────────────


def move_tensors(program: Any, target: torch.device) -> None:
    """Weights, constants and sample inputs onto `target`; what shares memory goes on sharing it."""
    storages: dict[int, torch.UntypedStorage] = {}

    def onto(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or same(value.device, target):
            return value
        new = _onto(value, target, storages)
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(new, requires_grad=value.requires_grad)
        return new.requires_grad_(value.requires_grad)

    for held in (program.state_dict, program.constants):
        for key, value in held.items():
            held[key] = onto(value)
    if program.example_inputs is not None:
        program._example_inputs = torch.utils._pytree.tree_map(onto, program.example_inputs)


def _onto(
    tensor: torch.Tensor, target: torch.device, storages: dict[int, torch.UntypedStorage]
) -> torch.Tensor:
    if type(tensor.data) is not torch.Tensor or tensor.layout is not torch.strided:
        return tensor.detach().to(target)
    old = tensor.untyped_storage()
    if old._cdata not in storages:
        whole = torch.empty(0, dtype=torch.uint8).set_(old)
        storages[old._cdata] = whole.to(target).untyped_storage()
    new = torch.empty(0, dtype=tensor.dtype, device=target)
    return new.set_(storages[old._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())


# ── The check afterwards ────────────────────────────────────────────────────────────────────────


def elsewhere(program: Any, target: torch.device) -> Iterator[str]:
    """Yield what is left on, or speaks of, a card that is not `target`, named."""
    held = [
        ("state_dict", program.state_dict),
        ("constants", program.constants),
        ("example_inputs", program.example_inputs),
    ]
    for name, value in held:
        for named in Walk().value(value, name):
            if _is_other(named.tensor.device, target):
                yield f"{named.path}: a tensor on {named.tensor.device}"
    for path, part in program.graph_module.named_modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                yield from (f"{_node(path, node)}: {what}" for what in _in_node(node, target))


def _in_node(node: Any, target: torch.device) -> Iterator[str]:
    region, right = "autocast" in str(node.target), ("cpu", target.type)
    for leaf in torch.utils._pytree.tree_leaves((node.args, node.kwargs, node.meta.get("val"))):
        if isinstance(leaf, torch.Tensor) and _is_other(leaf.device, target):
            yield f"a tensor on {leaf.device}"
        elif isinstance(leaf, torch.device) and _is_other(leaf, target):
            yield f"the device {leaf}"
        elif isinstance(leaf, str) and Device.named(leaf) and _is_other(torch.device(leaf), target):
            yield f"the text {leaf!r}"
        elif region and isinstance(leaf, str) and Device.of_kind(leaf) and leaf not in right:
            yield f"an autocast region of {leaf!r}"


def _is_other(device: torch.device, target: torch.device) -> bool:
    return is_card(device) and not same(device, target)


def _node(path: str, node: Any) -> str:
    return f"graph{'.' + path if path else ''}, {node.name} = {node.target}"


def _report(name: str, target: torch.device, left: list[str]) -> str:
    lines = [
        f"{name}: expected a program wholly on {target}, found {len(left)} records of another card "
        "after loading it:",
        *(f"  {one}" for one in left[:_MAX_SHOWN]),
        "  Export it again on cuda:0 or on the CPU, with devices taken from inputs (x.device).",
    ]
    return "\n".join(lines)
