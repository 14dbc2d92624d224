"""An exported program's archive: what it is, and the same archive with its devices moved.

Layouts: torch 2.6 and 2.7 (`serialized_*` members), 2.8 (models/, data/ with pickled weights), 2.9
and newer (data/weights/ with raw weights, and JSON that says where each belongs). Nothing is
unpickled, and weights stay where they are: an archive's directory is at its end, what replaces a
member goes there, before a new directory, and nothing that lies before is touched or read.

Sources of the device records: torch/_export/serde/schema.py (`Device` is {"type", "index"}; a
string argument is {"as_string"}), torch/serialization.py (a storage's location is a string like
"cuda:1"), torch.device's own pickling (`torch.device("cuda", 1)`).
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from gpulaunch.torch.tensors import ExportedProgramError, is_card

# ── Device records in JSON ────────────────────────────────────────────────────────────────────────

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


# ── The archive ───────────────────────────────────────────────────────────────────────────────────

Source = str | os.PathLike[str] | IO[bytes]

_OLD_PROGRAM = "serialized_exported_program.json"
_PROGRAM = re.compile(r"[^/]+/models/(.+)\.json")
_CODE = re.compile(r"[^/]+/code/.+\.py")
_ZIP = b"PK\x03\x04"
_MAX_SHOWN = 5


def name_of(source: Source) -> str:
    named = isinstance(source, (str, os.PathLike))
    return str(source if named else getattr(source, "name", "the given file"))


@contextmanager
def opened(source: Source) -> Iterator[IO[bytes]]:
    """Return the file, able to seek. Raises OSError where open() does."""
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb") as stream:
            yield stream
    else:
        yield source if source.seekable() else io.BytesIO(source.read())


def check_kind(stream: IO[bytes], name: str) -> None:
    """Raise ExportedProgramError, saying what to do, for what is not one program to load."""
    try:
        with zipfile.ZipFile(stream) as archive:
            _check_members(archive, name)
    except zipfile.BadZipFile:
        stream.seek(0)
        raise ExportedProgramError(
            f"{name}: expected a program that torch.export.save wrote, which is a zip archive; "
            f"found {stream.read(12)!r}"
        ) from None


def _check_members(archive: zipfile.ZipFile, name: str) -> None:
    members = archive.namelist()
    programs = [match[1] for match in map(_PROGRAM.fullmatch, members) if match]
    if _OLD_PROGRAM in members or "model" in programs:
        return
    if programs:
        raise ExportedProgramError(
            f"{name} has the programs {', '.join(programs)}, and none called 'model', which is the "
            "one that torch.export.load gives: save each by torch.export.save into its own file"
        )
    if any("/data/aotinductor/" in member for member in members):
        raise ExportedProgramError(
            f"{name} was compiled by AOTInductor and has no program left to move: it picks its "
            "card when it is loaded, torch._inductor.aoti_load_package(path, device_index=0)"
        )
    if any(map(_CODE.fullmatch, members)):
        raise ExportedProgramError(
            f"{name} is TorchScript (torch.jit.save), no torch.export program: "
            'torch.jit.load(path, map_location="cuda:0") moves all but the devices in its code. '
            "If it names another card, trace or script it again with the device of an input "
            "(x.device)"
        )
    if any(member.endswith("/data.pkl") for member in members):
        raise ExportedProgramError(
            f"{name} is a checkpoint (torch.save), no program: "
            'torch.load(path, map_location="cuda:0") puts its tensors on that card'
        )
    raise ExportedProgramError(
        f"{name} is a zip archive, but no program that torch.export.save wrote: found "
        f"{', '.join(members[:_MAX_SHOWN]) or 'nothing in it'}"
    )


# ── With its devices moved ──────────────────────────────────────────────────────────────────────

Change = Callable[[bytes, Moves], bytes]


def moved(
    stream: IO[bytes],
    moves: Moves,
    change_of: Callable[[zipfile.ZipFile, str], Change | None] | None = None,
) -> Overlay:
    """Return the same archive with its devices moved, to be read while `stream` is open.

    `change_of` gives what changes a member; None keeps it. Raises zipfile.BadZipFile for what is no
    archive.
    """
    with zipfile.ZipFile(stream) as archive:
        overlay = Overlay(stream, archive.start_dir)
    with zipfile.ZipFile(overlay, "a") as archive:
        for member in list(archive.infolist()):
            change = (change_of or _change_of)(archive, member.filename)
            old = archive.read(member) if change else b""
            new = change(old, moves) if change else old
            if new is not old:
                archive.infolist().remove(member)
                del archive.NameToInfo[member.filename]
                archive.writestr(zipfile.ZipInfo(member.filename), new)
    overlay.seek(0)
    return overlay


def _change_of(archive: zipfile.ZipFile, member: str) -> Change | None:
    """Return what moves the devices that a member records; None for extra files and raw weights."""
    if member.startswith("extra_files/") or "/extra/" in member:
        return None
    if member.endswith(".json"):
        return json_document
    with archive.open(member) as content:
        if content.read(4) == _ZIP:
            return _saved
    return pickled if "/opaque_obj_" in member else None


def _saved(content: bytes, moves: Moves) -> bytes:
    """Return what torch.save wrote into a member, an archive of its own, with its devices moved.

    Raw weights may look like one, by chance, and are left as they are.
    """
    try:
        new = moved(io.BytesIO(content), moves, _pickle_of).read()
    except zipfile.BadZipFile:
        return content
    return content if new == content else new


def _pickle_of(archive: zipfile.ZipFile, member: str) -> Change | None:
    return pickled if member.endswith(".pkl") else None


class Overlay(io.RawIOBase):
    """A stream's first `kept` bytes, and behind them its other bytes in memory, to be changed.

    The stream itself is only read, and not closed.
    """

    def __init__(self, stream: IO[bytes], kept: int) -> None:
        super().__init__()
        self._stream = stream
        self._kept = kept
        stream.seek(kept)
        self._rest = io.BytesIO(stream.read())
        self._at = 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        end = self._kept + self._rest.seek(0, io.SEEK_END)
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: end}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return all that was asked for, less only at the end: callers do not ask twice."""
        parts = [b"."]
        left = sys.maxsize if size < 0 else size
        while left and parts[-1]:
            if self._at < self._kept:
                self._stream.seek(self._at)
                parts.append(self._stream.read(min(left, self._kept - self._at)))
            else:
                self._rest.seek(self._at - self._kept)
                parts.append(self._rest.read(left))
            self._at += len(parts[-1])
            left -= len(parts[-1])
        return b"".join(parts[1:])

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        self._rest.seek(self._at - self._kept)
        count = self._rest.write(data)
        self._at += count
        return count

    def truncate(self, size: int | None = None) -> int:
        return self._kept + self._rest.truncate((self._at if size is None else size) - self._kept)
