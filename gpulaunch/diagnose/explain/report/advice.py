"""What to change: the words of advice on an error, by its kind."""

from __future__ import annotations

import ast
import os
import re
import sys
from typing import TYPE_CHECKING

from .messages import (
    KERNEL,
    LOADED,
    MEMORY,
    MIXED,
    NO_GPU,
    ORDINAL,
    SAME_CARD,
    baked_in,
    seen_cards,
    visible,
)
from .search import FrameSearch, TracebackStep, short
from .tensors import PER_FRAME, NamedTensor, by_owner, described, grouped
from .verdict import NOTHING, DeviceErrorEvidence, factory, resolve, unparse

if TYPE_CHECKING:
    from collections.abc import Iterator


class Advice:
    """What to change, in lines, given what was found."""

    def __init__(self, found: DeviceErrorEvidence) -> None:
        self.found = found

    def lines(self) -> Iterator[str]:
        words = {
            MIXED: self.mend_mixed,
            ORDINAL: self.mend_ordinal,
            LOADED: self.mend_loaded,
            NO_GPU: self.mend_no_gpu,
            SAME_CARD: self.mend_same_card,
            MEMORY: self.mend_memory,
            KERNEL: self.mend_kernel,
        }
        lines = list(dict.fromkeys(words[self.found.kind]()))
        if lines:
            yield "  to change:"
        for line in lines[: 3 * PER_FRAME]:
            yield f"    {line}"

    def mend_mixed(self) -> Iterator[str]:
        if "device type tensor to numpy" in self.found.text:
            yield f"{self.here()}: .cpu() before .numpy()"
            return
        inline = list(self.mend_inline())
        yield from inline
        if not self.found.odd and not inline:
            yield (
                "that line: bring what it names to one device"
                if self.found.elsewhere
                else "none of the tensors in sight is odd: bring inputs and model to one device, "
                "e.g. x = x.to(next(model.parameters()).device)"
            )
            return
        whole = [g for g in by_owner(self.found.odd) if self.is_whole(g)]
        told = {t.key for g in whole for t in g}
        for owner, group in self.merged(whole):
            if group[0].device == "meta":
                yield f"{self.here()}: {owner} is on meta, without data: load its weights first"
                continue
            made = self.made(owner)
            yield f"{self.here()}: {owner} is on {group[0].device} with all it has"
            if made:
                yield f"  {made[0]}: {owner} = {made[1] or '(...)'}.to({self.found.home!r})"
            else:
                yield f"  {owner}.to({self.found.home!r}), once, where it is made"
        for tensor in [t for t in self.found.odd if t.key not in told][:PER_FRAME]:
            yield from self.mend(tensor)
        yield from self.mend_next()

    def mend_next(self) -> Iterator[str]:
        """Name what else in that frame is elsewhere: the next line may meet it."""
        odd = {t.key for t in self.found.odd}
        rest = [
            t
            for t in self.found.held(self.found.where)
            if t.device != self.found.home and not t.zero_dim and t.key not in odd
        ]
        if rest:
            names = ", ".join(t.path for t in rest[:5]) + ", ..." * (len(rest) > 5)
            yield f"not on {self.found.home} either: {names}"

    def mend_inline(self) -> Iterator[str]:
        """Tensors that the line makes on the CPU as it goes, which no variable names."""
        for node in self.found.source.failing(self.found.where) if self.found.where else ():
            for call in ast.walk(node):
                if isinstance(call, ast.expr) and factory(call):
                    text = unparse(call)
                    if text:
                        given = f"{text[:-1]}, device={self.target()})"
                        yield f"{self.here()}: {text} is made on the CPU: {given}"

    def merged(self, whole: list[list[NamedTensor]]) -> list[tuple[str, list[NamedTensor]]]:
        """Odd modules by path; those of one variable that is odd altogether, as that variable."""
        line = grouped(self.found.line.tensors)
        found: dict[str, list[NamedTensor]] = {}
        for group in whole:
            root = re.split(r"[.\[]", group[0].path, maxsplit=1)[0]
            altogether = all(t in self.found.odd for t in line.get(root, ()))
            path = root if altogether and root != "self" else group[0].owner_path
            found.setdefault(path, []).extend(group)
        return list(found.items())

    def is_whole(self, group: list[NamedTensor]) -> bool:
        """Tell whether a module is odd as a whole: its own tensors are all on the odd side."""
        owner = group[0].owner
        if owner is None or group[0].role in ("attribute", "plain", "hidden"):
            return False
        own = FrameSearch(self.found.torch, self.found.until, 2000)
        own.registered(owner, "", "plain", 0)
        return {t.device for t in own.at(()).tensors} == {group[0].device}

    def made(self, path: str) -> tuple[str, str] | None:
        """Where a variable or an attribute of `self` that the user's line names is assigned."""
        step = self.found.where
        if step is None or not all(part.isidentifier() for part in path.split(".")):
            return None
        parent, _, name = path.rpartition(".")
        if not parent:
            found = self.found.source.assignment(step, name)
            return (f"{short(step.file)}:{found[0]}", unparse(found[1])) if found else None
        _, owner = resolve(ast.parse(parent, mode="eval").body, step)
        at = self.found.source.attribute(owner, name) if owner is not NOTHING else None
        return (f"{short(at[0])}:{at[1]}", unparse(at[2])) if at else None

    def mend(self, tensor: NamedTensor) -> Iterator[str]:
        target = self.target()
        if tensor.device == "meta":
            yield f"{self.here()}: {tensor.path} is a meta tensor, which has no data: load it first"
        elif tensor.role == "generator":
            yield f"{self.here()}: {tensor.path} = torch.Generator(device={target})"
        elif tensor.role == "attribute":
            yield from self.mend_attribute(tensor)
        elif tensor.role == "hidden":
            yield (
                f"{tensor.owner_path} is a module that its parent does not know of (it is in a "
                "plain list or dict): use nn.ModuleList or nn.ModuleDict, so that .to() reaches it"
            )
        elif tensor.role in ("parameter", "buffer") and tensor.owner is not None:
            yield (
                f"{tensor.path} is a {tensor.role} and was made or set after .to(): "
                f"{tensor.owner_path}.to({target}) after it"
            )
        else:
            yield from self.mend_plain(tensor)

    def mend_attribute(self, tensor: NamedTensor) -> Iterator[str]:
        name = tensor.name
        found = self.found.source.attribute(tensor.owner, name)
        direct = tensor.path == f"{tensor.owner_path}.{name}"
        at = f"{short(found[0])}:{found[1]}: " if found else ""
        yield f"{at}self.{name} is a plain attribute, which .to() passes by:"
        if direct:
            value = (unparse(found[2]) if found else "") or "..."
            yield f"  self.register_buffer({name!r}, {value}, persistent=False)"
        yield f"  or {self.here()}: {tensor.path}.to({self.target()})"

    def mend_plain(self, tensor: NamedTensor) -> Iterator[str]:
        """Say where a variable was made, in the outermost of the user's frames that has it."""
        target = self.target()
        step, path = self.origin(tensor)
        if step is not None and self.found.users and step not in self.found.users:
            yield (
                f"{self.here()}: one of the operands has no name there: {tensor.shape} on "
                f"{tensor.device}, {path} in {step.at}"
            )
            return
        root = re.split(r"[.\[]", path, maxsplit=1)[0]
        made = (
            self.found.source.assignment(step, root) if step is not None and root == path else None
        )
        at = step.at if step is not None else self.here()
        if step is not None and made is not None and factory(made[1]):
            call = unparse(made[1])
            given = f"device={self.found.home!r}"
            given = f"{call[:-1]}, {given})" if call else given
            yield f"{short(step.file)}:{made[0]}: {root} is made on the CPU: {given}"
            at = f"  or {at}"
        elif made is not None and step is not None:
            yield f"{short(step.file)}:{made[0]}: {root} is set here, on {tensor.device}"
        if re.search(r"[{#]", path):
            yield f"{at}: {path} to {self.found.home}"
        else:
            same = step is None or step.frame is getattr(self.found.where, "frame", None)
            place = "" if same else f" (in {self.here()}: {tensor.path})"
            yield f"{at}: {path} = {path}.to({target if same else repr(self.found.home)}){place}"

    def origin(self, tensor: NamedTensor) -> tuple[TracebackStep | None, str]:
        for step in self.found.users + self.found.way[::-1]:
            for other in self.found.held(step):
                if other.key == tensor.key:
                    return step, other.path
        return self.found.where, tensor.path

    def target(self) -> str:
        """Return the device as the line may say it: a neighbour's `.device`, else its name."""
        frame = [t for t in self.found.held(self.found.where) if t.role == "plain"]
        near = [
            t
            for t in self.found.line.tensors or frame
            if t.device == self.found.home and not re.search(r"[{#]", t.path)
        ]
        near.sort(key=lambda t: (t.role != "plain", "weight" not in t.path, len(t.path)))
        return f"{near[0].path}.device" if near else repr(self.found.home or "cuda:0")

    def here(self) -> str:
        return self.found.where.at if self.found.where else "there"

    def mend_ordinal(self) -> Iterator[str]:
        yield (
            f"{self.here()}: this job sees {seen_cards()}: "
            "ask for 'cuda:0', or 'cuda' for the current one"
        )
        for step in reversed(self.found.users):
            for path, value in self.found.looks[id(step.frame)].devices:
                number = re.search(r"(\d+)\D*\Z", value)
                private = "._" in path  # An argument parser's defaults, say.
                if number and not private and int(number.group(1)) >= max(1, visible() or 1):
                    made = self.found.source.assignment(step, path)
                    at = made[0] if made else step.line
                    yield f"{short(step.file)}:{at}: {path} = {value} is none of them"
        ranks = {n: os.environ[n] for n in ("LOCAL_RANK", "RANK") if n in os.environ}
        if ranks:
            told = ", ".join(f"{name}={value}" for name, value in ranks.items())
            yield f"{told} in the environment: more processes than cards?"

    def mend_loaded(self) -> Iterator[str]:
        names = {step.frame.f_globals.get("__name__") for step in self.found.way}
        if any(str(name).startswith("torch.export") for name in names):
            file, cards = baked_in(self.found.way)
            if cards:
                told = ", ".join(cards[:PER_FRAME])
                yield f"{short(file)} was exported on {told}; this job sees {seen_cards()}"
            yield f"{self.here()}: gpulaunch.torch.load_exported(path, device='cuda:0')"
            return
        cpu = "is_available() is False" in self.found.text
        device = "cpu" if cpu else "cuda:0"
        yield (
            f"{self.here()}: torch.load(..., map_location='{device}'): the file was written on "
            "another card and says so"
        )
        if cpu:
            yield from self.mend_no_gpu()

    def mend_no_gpu(self) -> Iterator[str]:
        mask = os.environ.get("CUDA_VISIBLE_DEVICES")
        if self.found.torch.there and not self.found.torch.cuda:
            yield f"torch {self.found.torch.version} here is a build without CUDA: {sys.prefix}"
            yield "  install a CUDA build there, or point the job at another python, venv or conda"
        if mask == "":
            yield "CUDA_VISIBLE_DEVICES is empty: this job was given no card (gpus: 0)"
        elif mask:
            yield f"CUDA_VISIBLE_DEVICES={mask}: `gpulaunch doctor` says whether the driver is fit"

    def mend_same_card(self) -> Iterator[str]:
        yield (
            f"several ranks are on one card: this job sees {seen_cards()}; start as many processes "
            "as it has cards, and torch.cuda.set_device(LOCAL_RANK) in each"
        )

    def mend_memory(self) -> Iterator[str]:
        held = {
            t.key: t
            for look in self.found.looks.values()
            for t in look.tensors
            if t.device not in ("cpu", "meta")
        }
        total = sum(t.size for t in held.values())
        if total:
            yield (
                f"the tensors in sight hold {total / 2**30:.2f} GiB; the rest is activations, "
                "caches and other processes"
            )
        for tensor in sorted(held.values(), key=lambda t: -t.size)[:5]:
            yield f"  {tensor.size / 2**30:.2f} GiB  {described(tensor, 0)}"
        yield "less at once (batch, length), torch.inference_mode() where nothing is trained"

    def mend_kernel(self) -> Iterator[str]:
        yield (
            "the line above is where the error was noticed, not where it happened: "
            "CUDA_LAUNCH_BLOCKING=1 in the job's env shows that one"
        )
        yield "an assert is most often an index out of range: a label or token id beyond its table"
