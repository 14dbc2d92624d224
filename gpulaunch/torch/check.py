"""Before the call: is every tensor of the module and of its inputs on one device?

Names what is elsewhere; moves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch

from gpulaunch.diagnose.explain.report.tensors import NamedTensor, described
from gpulaunch.torch.tensors import DeviceMismatchError, is_card, normal, tensors_in

_MAX_SHOWN = 40


def check_devices(
    module: Any, /, *inputs: Any, device: torch.device | str | int | None = None, **kwargs: Any
) -> torch.device | None:
    """Return the one device that all tensors of `module` and its inputs are on.

    None if there is no tensor.

    `module` is an nn.Module, another object that holds tensors, or None. Inputs may be nested in
    any way: mappings (a BatchEncoding too), sequences, dataclasses, other objects, modules.
    `device` is where all should be; left out, the card with most of the module on it, else of the
    inputs, else the CPU. CPU tensors without dimensions may stay where they are, as torch has it;
    so may what accelerate spread over several cards, or keeps elsewhere and brings for each call.

    Raises DeviceMismatchError naming each parameter, buffer, plain attribute (which `.to()` does
    not move) and input that is elsewhere, with what to call.

    Takes 1.5 ms for 100 tensors of a model of 76 modules; waits for no card.
    """
    model = tensors_in([("model", module)])
    known = {t.key for t in model}
    model = [t for t in model if not _moved_when_called(t.owner)]
    held = [(f"inputs[{n}]", value) for n, value in enumerate(inputs)]
    own = module if isinstance(module, torch.nn.Module) else None
    given = [] if _moves_inputs(own) else tensors_in([*held, *kwargs.items()])
    given = [t for t in given if t.key not in known]
    if not model and not given:
        return None
    wanted = str(_expected(model, given) if device is None else normal(device))
    right = {wanted} | (_spread(own) if device is None else set())
    numbers = {*right, "cpu"}
    odd = [t for t in [*model, *given] if t.device not in (numbers if t.zero_dim else right)]
    if odd:
        total = len(model) + len(given)
        raise DeviceMismatchError(_report(odd, total, wanted, device is not None), odd)
    return torch.device(wanted)


def _moved_when_called(module: Any) -> bool:
    """Return True if accelerate keeps a module's weights elsewhere and brings them for a call."""
    hook = getattr(module, "_hf_hook", None)
    return any(getattr(one, "offload", False) for one in (hook, *getattr(hook, "hooks", ())))


def _moves_inputs(module: Any) -> bool:
    """Return True if accelerate's hook on a model takes its inputs to where they are needed."""
    return getattr(getattr(module, "_hf_hook", None), "execution_device", None) is not None


def _spread(module: Any) -> set[str]:
    """Return the cards that accelerate has spread a model over, on purpose (device_map)."""
    places = set(map(str, getattr(module, "hf_device_map", {}).values())) - {"cpu", "disk", "meta"}
    return {str(normal(f"cuda:{at}" if at.isdecimal() else at)) for at in places}


def _expected(model: Sequence[NamedTensor], inputs: Sequence[NamedTensor]) -> str:
    """Return the card with most bytes of the model, then of the inputs; else the CPU."""
    for ranked in (_ranked(model), _ranked(inputs)):
        for device in filter(is_card, ranked):
            return device
    return next((d for d in _ranked(model or inputs) if d != "meta"), "meta")


def _ranked(tensors: Iterable[NamedTensor]) -> list[str]:
    """Return the devices of tensors, the one with most bytes first."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.device] += 1 + tensor.size
    return [device for device, _ in sizes.most_common()]


def _report(odd: Sequence[NamedTensor], total: int, wanted: str, given: bool) -> str:
    why = "" if given else " (most of it is there; device= names another)"
    # torch's own words first: who looks for them in a log finds these as well.
    lines = [
        f"Expected all tensors to be on the same device, {wanted}{why}; "
        f"found {len(odd)} of {total} elsewhere:"
    ]
    for advice, group in groupby(odd[:_MAX_SHOWN], lambda one: _advice(one, wanted)):
        lines += [f"  {described(one, 0)}" for one in group]
        lines.append(f"    -> {advice}")
    if len(odd) > _MAX_SHOWN:
        lines.append(f"  ... and {len(odd) - _MAX_SHOWN} more (the error's `odd` has all of them)")
    return "\n".join(lines)


def _advice(one: NamedTensor, wanted: str) -> str:
    """Return what to call or to write."""
    to = f'.to("{wanted}")'
    if one.device == "meta" and one.role == "plain":
        return f'a meta tensor has no data to move: make it with device="{wanted}"'
    if one.device == "meta":
        return (
            "a meta tensor has no data to move: load the weights first "
            "(load_state_dict(..., assign=True), from_pretrained), "
            f'or call .to_empty(device="{wanted}")'
        )
    if one.role == "hidden":
        return "keep that module in an nn.ModuleList or nn.ModuleDict, so that .to() finds it"
    if one.role == "attribute":
        return (
            f'in its class, self.register_buffer("{one.name}", ..., persistent=False) '
            f"instead of a plain attribute; or {one.path} = {one.path}{to}"
        )
    if one.owner is not None:
        root = one.path.partition(".")[0]
        return f"{root if root.isidentifier() else one.owner_path}{to}"
    if one.owner_path:
        return f"{one.owner_path} = {one.owner_path}{to}"
    return f"{one.path}{to} where it is made"
