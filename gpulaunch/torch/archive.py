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
from gpulaunch.torch.records import Moves, json_document, pickled

Source = str | os.PathLike[str] | IO[bytes]

_OLD_PROGRAM = "serialized_exported_program.json"
_PROGRAM = re.compile(r"[^/]+/models/(.+)\.json")
_CODE = re.compile(r"[^/]+/code/.+\.py")
_DEVICE_IN_CODE = re.compile(r"""torch\.device\(["'](?!cpu|meta)\w+(?::\d+)?["']\)""")
_ZIP = b"PK\x03\x04"
_SHOWN = 5


def name_of(source: Source) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    return str(getattr(source, "name", None) or "the given file")


@contextmanager
def opened(source: Source) -> Iterator[zipfile.ZipFile]:
    """The archive. Raises ExportedProgramError for what is none, OSError where open() does."""
    given = not isinstance(source, (str, os.PathLike))
    stream: IO[bytes] = source if given else open(source, "rb")  # type: ignore[assignment,arg-type]  # noqa: SIM115
    try:
        if not stream.seekable():
            stream = io.BytesIO(stream.read())
        try:
            archive = zipfile.ZipFile(stream)
        except zipfile.BadZipFile:
            stream.seek(0)
            raise ExportedProgramError(
                f"{name_of(source)}: expected a program that torch.export.save wrote, which is a "
                f"zip archive; found {stream.read(12)!r}"
            ) from None
        with archive:
            yield archive
    finally:
        if not given:
            stream.close()


def check_kind(archive: zipfile.ZipFile, name: str) -> None:
    """Raises ExportedProgramError, saying what to do, for what is not one program to load."""
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
        f"{', '.join(members[:_SHOWN]) or 'nothing in it'}"
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
    more = [f"  ... and {len(found) - _SHOWN} more lines"] if len(found) > _SHOWN else []
    return "\n".join(
        [
            f"{what}its code has {', '.join(cards)} written into it, in {len(found)} lines:",
            *found[:_SHOWN],
            *more,
            f"  {load} moves parameters, buffers and constants, and not those lines: they go on "
            "making tensors on that card. Trace or script it again on cuda:0, with the device "
            "taken from an input (x.device) in place of a literal.",
        ]
    )


def moved(archive: zipfile.ZipFile, moves: Moves) -> io.BytesIO:
    """The same archive with its devices moved. Holds the whole file in memory."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as target:
        for member in archive.infolist():
            content = archive.read(member)
            if is_record(member.filename):
                content = _rewritten(member.filename, content, moves)
            target.writestr(zipfile.ZipInfo(member.filename), content)
    out.seek(0)
    return out


def is_record(member: str) -> bool:
    """Whether a member can hold device records: neither the user's extra files nor notes."""
    inside = member.split("/", 1)[-1]
    return not (
        member.startswith("extra_files/")
        or inside.startswith(("extra/", ".data/"))
        or inside in ("version", "byteorder", "archive_format", "archive_version")
    )


def _rewritten(member: str, content: bytes, moves: Moves) -> bytes:
    if member.endswith(".json"):
        return json_document(content, moves)
    if content[:4] == _ZIP:
        return _inner(content, moves)
    if "/opaque_obj_" in member:
        return pickled(content, moves)
    return content


def _inner(content: bytes, moves: Moves) -> bytes:
    """What torch.save wrote into one member: an archive of its own. Raw weights may look like one,
    by chance, and are left as they are."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as inner:
            return _with_moved_pickles(inner, content, moves)
    except zipfile.BadZipFile:
        return content


def _with_moved_pickles(inner: zipfile.ZipFile, content: bytes, moves: Moves) -> bytes:
    new = {}
    for member in inner.namelist():
        if member.endswith(".pkl"):
            old = inner.read(member)
            new[member] = pickled(old, moves)
            if new[member] is old:
                del new[member]
    if not new:
        return content
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as target:
        for member in inner.namelist():
            target.writestr(zipfile.ZipInfo(member), new.get(member) or inner.read(member))
    return out.getvalue()
