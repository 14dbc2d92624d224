"""An exported program's archive: what it is, the devices it records, a copy with them moved.

Layouts: torch 2.6 and 2.7 (`serialized_*` members), 2.8 (models/, data/ with pickled weights), 2.9
and newer (data/weights/ with raw weights, and JSON that says where each belongs). Nothing is
unpickled.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from gpulaunch.torch.errors import ExportedProgramError
from gpulaunch.torch.overlay import Overlay, replaced
from gpulaunch.torch.records import Moves, json_document, pickled

Source = str | os.PathLike[str] | IO[bytes]

_OLD_PROGRAM = "serialized_exported_program.json"
_PROGRAM = re.compile(r"[^/]+/models/(.+)\.json")
_CODE = re.compile(r"[^/]+/code/.+\.py")
_DEVICE_IN_CODE = re.compile(r"""torch\.device\(["'](?!cpu|meta)\w+(?::\d+)?["']\)""")
_THE_FIRST = {'torch.device("cuda")', 'torch.device("cuda:0")'}
_ZIP = b"PK\x03\x04"
_MAX_SHOWN = 5


def name_of(source: Source) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    return str(getattr(source, "name", None) or "the given file")


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
        raise ExportedProgramError(_torchscript(archive, name))
    if any(member.endswith("/data.pkl") for member in members):
        raise ExportedProgramError(
            f"{name} is a checkpoint (torch.save), no program: "
            'torch.load(path, map_location="cuda:0") puts its tensors on that card'
        )
    raise ExportedProgramError(
        f"{name} is a zip archive, but no program that torch.export.save wrote: found "
        f"{', '.join(members[:_MAX_SHOWN]) or 'nothing in it'}"
    )


def _torchscript(archive: zipfile.ZipFile, name: str) -> str:
    found = [
        f"  {member}:{number}: {line.strip()[:160]}"
        for member in archive.namelist()
        if _CODE.fullmatch(member)
        for number, line in enumerate(
            archive.read(member).decode("utf-8", "replace").split("\n"), 1
        )
        if _DEVICE_IN_CODE.search(line)
    ]
    load = 'torch.jit.load(path, map_location="cuda:0")'
    what = f"{name} is TorchScript (torch.jit.save), no torch.export program: "
    if not found:
        return f"{what}its code names no card, so {load} puts all of it on that one"
    cards = sorted(set(_DEVICE_IN_CODE.findall("\n".join(found))))
    if set(cards) <= _THE_FIRST:
        return (
            f"{what}its code has cuda:0 written into it, in {len(found)} lines. {load} loads it, "
            "and it runs where that is the card that is meant, as in a job, which sees its own "
            "card as cuda:0"
        )
    more = [f"  ... and {len(found) - _MAX_SHOWN} more lines"] if len(found) > _MAX_SHOWN else []
    return "\n".join(
        [
            f"{what}its code has {', '.join(cards)} written into it, in {len(found)} lines:",
            *found[:_MAX_SHOWN],
            *more,
            f"  {load} moves parameters, buffers and constants, and not those lines: they go on "
            "making tensors on that card. Trace or script it again on cuda:0, with the device "
            "taken from an input (x.device) in place of a literal.",
        ]
    )


def moved(stream: IO[bytes], moves: Moves) -> Overlay:
    """Return the same archive with its devices moved, to be read while `stream` is open."""

    def rewrite(archive: zipfile.ZipFile, member: str) -> bytes | None:
        if not _is_record(archive, member):
            return None
        old = archive.read(member)
        new = _rewritten(member, old, moves)
        return None if new is old else new

    return replaced(stream, rewrite)


def _is_record(archive: zipfile.ZipFile, member: str) -> bool:
    """Tell whether a member can hold device records: no raw weights, notes or extra files."""
    if member.startswith("extra_files/") or "/extra/" in member:
        return False
    if member.endswith(".json") or "/opaque_obj_" in member:
        return True
    with archive.open(member) as content:
        return content.read(4) == _ZIP


def _rewritten(member: str, content: bytes, moves: Moves) -> bytes:
    if member.endswith(".json"):
        return json_document(content, moves)
    if content[:4] == _ZIP:
        return _inner(content, moves)
    if "/opaque_obj_" in member:
        return pickled(content, moves)
    return content


def _inner(content: bytes, moves: Moves) -> bytes:
    """Return what torch.save wrote into a member, an archive of its own, with its devices moved.

    Raw weights may look like one, by chance, and are left as they are.
    """
    changed = False

    def rewrite(archive: zipfile.ZipFile, member: str) -> bytes | None:
        nonlocal changed
        if not member.endswith(".pkl"):
            return None
        old = archive.read(member)
        new = pickled(old, moves)
        changed |= new is not old
        return None if new is old else new

    try:
        copy = replaced(io.BytesIO(content), rewrite)
    except zipfile.BadZipFile:
        return content
    return copy.read() if changed else content
