"""The device records inside an exported program's files, rewritten: JSON documents and pickles.

Pure: bytes in, bytes out, nothing is unpickled. Sources: torch/_export/serde/schema.py (`Device` is
{"type", "index"}; a string argument is {"as_string"}), torch/serialization.py (a storage's location
is a string like "cuda:1"), torch.device's own pickling (`torch.device("cuda", 1)`).
"""

from __future__ import annotations

import json
import pickletools
import re
from dataclasses import dataclass, field
from typing import Any

from gpulaunch.torch.tensors import is_card

_CARD_NAMES = "cuda|xpu|hip|npu|mtia|hpu|mps|privateuseone"
_WITH_INDEX = re.compile(rf"(?:{_CARD_NAMES}):\d+")
_KINDS = frozenset([*_CARD_NAMES.split("|"), "cpu"])


def is_device(text: str, kinds_too: bool = False) -> bool:
    """Return True if a text is a device like "cuda:1"; with `kinds_too` also one like "cuda"."""
    return bool(_WITH_INDEX.fullmatch(text)) or (kinds_too and text in _KINDS)


@dataclass(slots=True)
class Moves:
    """Where each recorded device goes, and which were found on the way (with `to` None: only that).

    Cards become `to`, whatever their number; the CPU too with `cpu_too`, for a program without
    cards. Otherwise what was on the CPU beside a card was so on purpose: lengths, indices, scalars.
    """

    to: str | None
    cpu_too: bool = False
    found: set[str] = field(default_factory=set)

    def __call__(self, device: str) -> str:
        self.found.add(device)
        moves = is_card(device) or (self.cpu_too and device == "cpu")
        return self.to if moves and self.to is not None else device

    def parts(self, kind: str, index: int | None) -> tuple[str, int | None]:
        """Return where a device of two parts goes."""
        new, _, number = self(kind if index is None else f"{kind}:{index}").partition(":")
        return new, int(number) if number else None

    def text(self, text: str, kinds_too: bool = False) -> str:
        if not is_device(text, kinds_too):
            return text
        return self(text) if ":" in text else self(text).partition(":")[0]


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
        old = value["type"], value.get("index")
        new = moves.parts(*old)
        if new != old:
            value["type"], value["index"] = new
        return new != old
    kinds_too = kinds_too or "autocast" in str(value.get("target", ""))
    changed = True in [_moved(one, moves, kinds_too) for one in value.values()]
    if isinstance(text := value.get("as_string"), str):
        value["as_string"] = moves.text(text, kinds_too)
        changed |= value["as_string"] != text
    return changed


# ── Pickles ─────────────────────────────────────────────────────────────────────────────────────

_STRINGS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE")
_BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
_GETS = ("BINGET", "LONG_BINGET", "GET")
_PUTS = ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE")


def pickled(data: bytes, moves: Moves) -> bytes:
    """Return the same pickle with its devices moved; the very same bytes where nothing changed.

    Strings like "cuda:1", torch.device objects, and the metadata of fake tensors. Raises ValueError
    for what is no pickle.
    """
    ops = list(pickletools.genops(data))
    ends = [pos for _, _, pos in ops[1:]] + [len(data)]
    out: list[bytes] = []
    changed = False
    memo: dict[int, Any] = {}
    seen: list[Any] = [None] * 3  # what was pushed last, as far as it is known
    for (op, arg, start), end in zip(ops, ends, strict=True):
        if op.name == "FRAME":
            continue  # a hint for reading ahead, whose length would be wrong
        old = new = data[start or 0 : end]
        if op.name in _PUTS:
            memo[len(memo) if arg is None else int(str(arg))] = seen[-1]
        elif op.name in _GETS:
            seen.append(memo.get(int(str(arg))))
        elif op.name == "STACK_GLOBAL":
            seen.append(f"{seen[-2]} {seen[-1]}")
        else:
            new = _rewritten(op.name, arg, old, seen, moves)
            seen.append(arg)
        changed |= new is not old
        out.append(new)
    return b"".join(out) if changed else data


def _rewritten(name: str, arg: Any, raw: bytes, seen: list[Any], moves: Moves) -> bytes:
    """Return the bytes of an operation, changed where it makes a device."""
    if name in _STRINGS:
        text = moves.text(arg) if arg[:1] != "{" else _fake(arg, moves)
        return raw if text == arg else _text(text)
    if name in _BYTES and arg[:1] == b"{":
        content = _fake(arg.decode("utf-8", "replace"), moves).encode()
        return raw if content == arg else b"B" + len(content).to_bytes(4, "little") + content
    count = {"TUPLE1": 1, "TUPLE2": 2}.get(name, 0)
    if count and seen[-1 - count] == "torch device":
        kind, index = [*seen[-count:], None][:2]
        if kind in _KINDS and (new := moves.parts(kind, index)) != (kind, index):
            # The old arguments are popped; the memo may be asked for them again.
            number = b"\x85" if new[1] is None else b"K" + bytes([new[1]]) + b"\x86"
            return b"0" * count + _text(new[0]) + number
    return raw


def _fake(text: str, moves: Moves) -> str:
    """Return a fake tensor's metadata, a JSON document inside the pickle, with devices moved."""
    try:
        return json_document(text.encode(), moves).decode()
    except ValueError:
        return text


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded
