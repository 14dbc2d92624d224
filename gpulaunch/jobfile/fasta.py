"""FASTA files: where each record lies, its id and its sequence's length. Reads, never rewrites."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias

from msgspec import Struct

from gpulaunch.errors import UsageError
from gpulaunch.files import PIECE
from gpulaunch.jobfile.mistakes import FieldError
from gpulaunch.jobfile.source import open_regular

MAX_RECORDS = 1_000_000
MAX_RECORD_BYTES = 4 << 30
"""A job gets its record as a file of its own, which is read in one piece to write it."""

Piece: TypeAlias = tuple[bool, bytes]
"""Up to `PIECE` bytes of a line, and whether they are its first."""


class FastaEntry(Struct):
    """`offset` and `size` are bytes of the file; `length` counts the sequence's letters.

    `line` is the number of the header's line.
    """

    id: str
    header: str
    offset: int
    line: int
    length: int = 0
    size: int = 0
    digest: str = ""


def digest_of(record: bytes) -> str:
    """Return the digest of a record's bytes, as in `FastaEntry.digest`."""
    return hashlib.blake2b(record, digest_size=8).hexdigest()


class _Wholeness(Protocol):
    def whole(self, path: str, size: int) -> bool: ...


def records(path: Path, growing: _Wholeness | None = None) -> list[FastaEntry]:
    """Return all records, in order. Raises FieldError with file and line.

    `growing`: the file may have none, and the last one counts where the file is `whole`.
    """
    try:
        with open_regular(path, "a FASTA file") as file:
            size = os.fstat(file.fileno()).st_size if growing is not None else None
            lines = _pieces(file, str(path), size)
            if growing is not None and not growing.whole(str(path), size or 0):
                lines = _complete(lines)
            found = list(_scan(lines, str(path)))
    except UsageError as error:
        raise FieldError(str(error)) from None
    except OSError as error:
        raise FieldError(f"{path}: cannot be read: {error.strerror}") from None
    if not found and growing is None:
        raise FieldError(f"{path}: expected FASTA records, found none")
    return found


def _pieces(file: BinaryIO, where: str, size: int | None) -> Iterator[Piece]:
    """Yield the lines of the file, long ones in pieces, each with whether a line begins with it.

    `size`: only the first bytes, as more may be written meanwhile. Raises FieldError for a header
    that is longer than a piece, and for a record that no job could be given.
    """
    number = record = 0
    fresh = True
    left = float("inf") if size is None else size
    while left > 0 and (piece := file.readline(int(min(left, PIECE)))):
        number += fresh
        if fresh and piece.startswith(b">"):
            record = 0
            if len(piece) == PIECE:
                raise FieldError(f"{where}:{number}: a header of more than {PIECE >> 20} MiB")
        record += len(piece)
        if record > MAX_RECORD_BYTES:
            most = MAX_RECORD_BYTES >> 30
            raise FieldError(f"{where}:{number}: a record of more than {most} GiB up to this line")
        yield fresh, piece
        left -= len(piece)
        fresh = piece.endswith(b"\n")


def _complete(lines: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the lines of all records but the last, which may be half-written."""
    held: list[Piece] = []
    for fresh, line in lines:
        if fresh and line.startswith(b">"):
            yield from held
            held = []
        held.append((fresh, line))


def _scan(lines: Iterable[Piece], where: str) -> Iterator[FastaEntry]:
    offset = number = 0
    current: FastaEntry | None = None
    hash = hashlib.blake2b(digest_size=8)
    seen: dict[str, int] = {}
    for fresh, line in lines:
        number += fresh
        if fresh and line.startswith(b">"):
            if current is not None:
                yield _done(current, hash, where)
            current, hash = _begin(line, offset, number, where), hashlib.blake2b(digest_size=8)
            first = seen.setdefault(current.id, number)
            if first != number:
                raise FieldError(
                    f"{where}:{number}: id {current.id} twice; the first is in line {first}"
                )
            if len(seen) > MAX_RECORDS:
                raise FieldError(f"{where}: more than {MAX_RECORDS:,} records")
        elif current is None:
            _check_blank(line, number, where)
        else:
            if b"\0" in line:
                raise FieldError(f"{where}:{number}: a NUL byte; is this a binary file?")
            current.length += len(b"".join(line.split()))
        if current is not None:
            current.size += len(line)
            hash.update(line)
        offset += len(line)
    if current is not None:
        yield _done(current, hash, where)


def _done(record: FastaEntry, hash: hashlib.blake2b, where: str) -> FastaEntry:
    if not record.length:
        raise FieldError(f"{where}:{record.line}: record {record.id} has no sequence")
    record.digest = hash.hexdigest()
    return record


def _begin(line: bytes, offset: int, number: int, where: str) -> FastaEntry:
    try:
        header = line[1:].decode("utf-8").strip()
    except UnicodeDecodeError:
        raise FieldError(f"{where}:{number}: a header that is not UTF-8") from None
    if "\0" in header:
        raise FieldError(f"{where}:{number}: a NUL byte; is this a binary file?")
    # Some files have `> id`, with a space before the first word: most readers see an empty id.
    words = header.split() if not line[1:2].isspace() else []
    if not words:
        raise FieldError(f"{where}:{number}: a record without an id; expected >ID")
    return FastaEntry(words[0], header, offset, number)


def _check_blank(line: bytes, number: int, where: str) -> None:
    if number == 1 and line.startswith(b"\x1f\x8b"):
        raise FieldError(
            f"{where}: compressed with gzip, which is not read; unpack it first (gunzip -k)"
        )
    if line.strip() and line.strip() != b"\xef\xbb\xbf":
        shown = line[:40].decode("utf-8", "replace").strip()
        raise FieldError(f"{where}:{number}: expected a FASTA record's >ID, found {shown!r}")
