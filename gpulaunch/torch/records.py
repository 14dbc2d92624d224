"""The device records inside an exported program's files, rewritten: JSON documents and pickles.

Pure: bytes in, bytes out, nothing is unpickled. Sources: torch/_export/serde/schema.py (`Device` is
{"type", "index"}; a string argument is {"as_string"}), torch/serialization.py (a storage's location
is a string like "cuda:1"), torch.device's own pickling (`torch.device("cuda", 1)`).
"""

from __future__ import annotations

import json
import pickletools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_NO_CARD = ("cpu", "meta")
_CARD_NAMES = "cuda|xpu|hip|npu|mtia|hpu|mps|privateuseone"
_WITH_INDEX = re.compile(rf"({_CARD_NAMES}):(\d+)")
_KINDS = frozenset([*_CARD_NAMES.split("|"), "cpu"])


@dataclass(frozen=True, slots=True)
class Device:
    kind: str
    index: int | None = None

    def __str__(self) -> str:
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    @property
    def is_card(self) -> bool:
        return self.kind not in _NO_CARD

    @staticmethod
    def named(text: str) -> Device | None:
        """Return the device of a text like "cuda:1" alone."""
        match = _WITH_INDEX.fullmatch(text)
        return Device(match[1], int(match[2])) if match else None

    @staticmethod
    def of_kind(text: str) -> Device | None:
        """Return the device of a text like "cuda" alone."""
        return Device(text) if text in _KINDS else None


@dataclass(slots=True)
class Moves:
    """Where each recorded device goes, and which were found on the way (with `to` None: only that).

    Cards become `to`, whatever their number; the CPU too with `cpu_too`, for a program without
    cards. Otherwise what was on the CPU beside a card was so on purpose: lengths, indices, scalars.
    """

    to: Device | None
    cpu_too: bool = False
    found: set[Device] = field(default_factory=set)

    def __call__(self, device: Device) -> Device:
        self.found.add(device)
        if self.to is None or not (device.is_card or (self.cpu_too and device.kind == "cpu")):
            return device
        return self.to


def json_document(text: bytes, moves: Moves) -> bytes:
    """Return a JSON document with its devices moved; its very bytes where nothing changed."""
    document = json.loads(text)
    return json.dumps(document).encode() if _moved(document, moves, False) else text


def _moved(value: Any, moves: Moves, kinds_too: bool) -> bool:
    """Move devices in place. `kinds_too`: strings may be a device's kind alone (autocast)."""
    if isinstance(value, list):
        return True in [_moved(one, moves, kinds_too) for one in value]
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("type"), str) and value.keys() <= {"type", "index"}:
        return _move_device(value, moves)
    kinds_too = kinds_too or "autocast" in str(value.get("target", ""))
    changed = True in [_moved(one, moves, kinds_too) for one in value.values()]
    if isinstance(value.get("as_string"), str):
        new = _string(value["as_string"], moves, kinds_too)
        changed |= new != value["as_string"]
        value["as_string"] = new
    return changed


def _move_device(value: dict[str, Any], moves: Moves) -> bool:
    old = Device(value["type"], value.get("index"))
    new = moves(old)
    if new != old:
        value.update(type=new.kind, index=new.index)
    return new != old


def _string(text: str, moves: Moves, kinds_too: bool = False) -> str:
    if named := Device.named(text):
        return str(moves(named))
    if kinds_too and (named := Device.of_kind(text)):
        return moves(named).kind
    return text


# ── Pickles ─────────────────────────────────────────────────────────────────────────────────────

_STRINGS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE")
_BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
_GETS = ("BINGET", "LONG_BINGET", "GET")
_PUTS = ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE")
_INTEGERS = ("BININT", "BININT1", "BININT2", "LONG1", "INT")


@dataclass(slots=True)
class _Op:
    name: str
    arg: Any
    raw: bytes
    value: str | None  # of a string or a global, also where it comes out of the memo


def pickled(data: bytes, moves: Moves) -> bytes:
    """Return the same pickle with its devices moved; the very same bytes where nothing changed.

    Strings like "cuda:1", torch.device objects, and the metadata of fake tensors. Raises ValueError
    for what is no pickle.
    """
    ops = list(_parsed(data))
    out: list[bytes] = []
    at = 0
    while at < len(ops):
        taken, new = _device_object(ops, at, moves) or (1, _one(ops[at], moves))
        out.append(new)
        at += taken
    # A frame's length is only a hint for reading ahead: without frames a pickle is whole.
    unframed = [op.raw for op in ops if op.name != "FRAME"]
    return b"".join(out) if b"".join(out) != b"".join(unframed) else data


def _parsed(data: bytes) -> Iterator[_Op]:
    ops = [(op.name, arg, pos) for op, arg, pos in pickletools.genops(data)]
    ends = [pos for _, _, pos in ops[1:]] + [len(data)]
    memo: dict[int, str | None] = {}
    last, before = None, None
    for (name, arg, pos), end in zip(ops, ends, strict=True):
        if name in _PUTS:
            memo[len(memo) if arg is None else int(str(arg))] = last
        elif name == "STACK_GLOBAL":
            last, before = f"{before} {last}", last
        elif name in _GETS:
            last, before = memo.get(int(str(arg))), last
        elif name != "FRAME":
            last, before = str(arg) if name in _STRINGS or name == "GLOBAL" else None, last
        yield _Op(name, arg, data[pos:end], last)


def _one(op: _Op, moves: Moves) -> bytes:
    if op.name == "FRAME":
        return b""  # its length would be wrong
    if op.name in _STRINGS:
        new = _string(op.arg, moves) if op.arg[:1] != "{" else _fake(op.arg, moves)
        return op.raw if new == op.arg else _text(new)
    if op.name in _BYTES and op.arg[:1] == b"{":
        new = _fake(op.arg.decode("utf-8", "replace"), moves)
        if new.encode() != op.arg:
            return b"B" + len(new.encode()).to_bytes(4, "little") + new.encode()
    return op.raw


def _fake(text: str, moves: Moves) -> str:
    """Return a fake tensor's metadata, a JSON document inside the pickle, with devices moved."""
    if '"device"' not in text:
        return text
    try:
        return json_document(text.encode(), moves).decode()
    except ValueError:
        return text


def _device_object(ops: list[_Op], at: int, moves: Moves) -> tuple[int, bytes] | None:
    """torch.device("cuda", 1), from the string on: how many operations, and what replaces them."""
    if ops[at].value not in _KINDS or not _follows_device(ops, at):
        return None
    rest = at + 1
    while rest < len(ops) and ops[rest].name in _PUTS:
        rest += 1
    names = [op.name for op in ops[rest : rest + 2]]
    if names[:1] == ["TUPLE1"]:
        old, end = Device(str(ops[at].value)), rest + 1
    elif len(names) == 2 and names[0] in _INTEGERS and names[1] == "TUPLE2":
        old, end = Device(str(ops[at].value), int(ops[rest].arg)), rest + 2
    else:
        return None
    new = moves(old)
    kept = b"".join(op.raw for op in ops[at:rest])  # the memo may be asked for the string again
    if new == old:
        return end - at, kept + b"".join(op.raw for op in ops[rest:end])
    index = b"\x85" if new.index is None else b"K" + bytes([new.index]) + b"\x86"
    return end - at, kept + b"0" + _text(new.kind) + index


def _follows_device(ops: list[_Op], at: int) -> bool:
    at -= 1
    while at > 0 and ops[at].name in _PUTS:
        at -= 1
    return at >= 0 and ops[at].value == "torch device"


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded
