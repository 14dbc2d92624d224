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
from torch.export.passes import move_to_device_pass

from gpulaunch.torch.archive import (
    Moves,
    Overlay,
    Source,
    check_kind,
    is_device,
    moved,
    name_of,
    opened,
)
from gpulaunch.torch.tensors import ExportedProgramError, is_card, is_other_card, normal, tensors_in

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
    in the program (it is named), and for what is no such program. OSError as open() does.

    Weights are neither copied nor looked at, but those in files of torch 2.8 and older: an archive
    inside the archive, which is in memory once more meanwhile.
    """
    target = normal(device)
    name = name_of(source)
    with opened(source) as stream:
        check_kind(stream, name)
        check_present(target)
        moves = Moves(to=str(target))
        copy = moved(stream, moves)
        of_the_cpu = not any(map(is_card, moves.found))
        if of_the_cpu and is_card(target):
            copy = moved(stream, Moves(to=str(target), cpu_too=True))
        program = _loaded(copy, name, extra_files)
    if of_the_cpu and target.type != "cpu":
        move_program(program, target)
    left = list(elsewhere(program, target))
    if left:
        raise ExportedProgramError(
            f"{name}: expected a program wholly on {target}, found {len(left)} records of another "
            "card after loading it:\n  "
            + "\n  ".join(left[:_MAX_SHOWN])
            + "\n  Export it again on "
            "cuda:0 or on the CPU, with devices taken from inputs (x.device)."
        )
    return program


def _loaded(copy: Overlay, name: str, extra_files: dict[str, Any] | None) -> Any:
    # torch 2.6 knows an autocast region's operator only once this is imported.
    importlib.import_module("torch._higher_order_ops.wrap")
    try:
        return torch.export.load(copy, extra_files=extra_files)
    except Exception as error:
        raise ExportedProgramError(
            f"{name}: torch {torch.__version__} cannot load this program: "
            f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]} "
            "(a file of a newer torch needs that torch, or to be exported again)"
        ) from error


def check_present(device: torch.device) -> None:
    """Raise ExportedProgramError where this process cannot put tensors on a device."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ExportedProgramError(
            f"{device} is not here: this process sees {count or 'no'} card{'s' * (count != 1)} "
            "(gpulaunch doctor says why); a job's own card is cuda:0, whatever its number outside"
        )


def move_program(program: Any, target: torch.device) -> None:
    """Move what the file's records do not say, which is pickled tensors of the CPU.

    torch's pass moves tensors one by one, and before torch 2.9 no sample inputs. Tied weights stay
    one.
    """
    first: dict[Any, str] = {}
    tied = {
        key: first.setdefault((type(one), one.shape, one.stride(), one.data_ptr()), key)
        for key, one in program.state_dict.items()
        if one.layout is torch.strided
    }
    if program.example_inputs is not None:
        program._example_inputs = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.to(target), program.example_inputs
        )
    move_to_device_pass(program, str(target))
    program.state_dict.update({key: program.state_dict[one] for key, one in tied.items()})


# ── The check afterwards ────────────────────────────────────────────────────────────────────────


def elsewhere(program: Any, target: torch.device) -> Iterator[str]:
    """Yield what is left on, or speaks of, a card that is not `target`, named."""
    held = {
        "state_dict": program.state_dict,
        "constants": program.constants,
        "example_inputs": program.example_inputs,
    }
    for tensor in tensors_in(held.items()):
        if is_other_card(tensor.device, target):
            yield f"{tensor.path}: a tensor on {tensor.device}"
    for path, part in program.graph_module.named_modules():
        if isinstance(part, torch.fx.GraphModule):
            at = f"graph.{path}" if path else "graph"
            for node in part.graph.nodes:
                for what in _in_node(node, target):
                    yield f"{at}, {node.name} = {node.target}: {what}"


def _in_node(node: Any, target: torch.device) -> Iterator[str]:
    region = "autocast" in str(node.target)
    for leaf in torch.utils._pytree.tree_leaves((node.args, node.kwargs, node.meta.get("val"))):
        if isinstance(leaf, (torch.Tensor, torch.device)):
            device = getattr(leaf, "device", leaf)
            what = f"the device {leaf}" if leaf is device else f"a tensor on {device}"
        elif isinstance(leaf, str) and is_device(leaf, region) and leaf != target.type:
            device, what = leaf, f"the text {leaf!r}"
        else:
            continue
        if is_other_card(device, target):
            yield what
