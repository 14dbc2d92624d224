"""Makes the items of `foreach:`: files of globs, values, lines, rows of a table, FASTA records.

Reads what the job file names, below its directory, and rewrites none of it. Knows nothing of jobs.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gpulaunch.base.errors import UsageError
from gpulaunch.base.files import PIECE
from gpulaunch.core.model import FastaRecord
from gpulaunch.jobfile.forms import ForEach, check_free
from gpulaunch.jobfile.globs import home_expanded, matches_of, natural, sight_of
from gpulaunch.jobfile.mistakes import FieldError
from gpulaunch.jobfile.placeholders import NAME, OF_PATHS
from gpulaunch.jobfile.source import Counting, ForeachSource, open_regular, read_bytes

# ── Records of a FASTA file ───────────────────────────────────────────────────────────────────────

MAX_RECORDS = 1_000_000
MAX_RECORD_BYTES = 4 << 30
"""A job gets its record as a file of its own, which is read in one piece to write it."""

Piece: TypeAlias = tuple[bool, bytes]
"""Up to `PIECE` bytes of a line, and whether they are its first."""


class FastaEntry(Struct):
    """Where a record lies. `offset`, `size`: bytes of the file; `length`: the sequence's letters.

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
                lines = _complete_records(lines)
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


def _complete_records(lines: Iterable[Piece]) -> Iterator[Piece]:
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


# ── Items ─────────────────────────────────────────────────────────────────────────────────────────

MAX_DATA_BYTES = 256 << 20
MAX_LINES = 2_000_000

_OF_PATH = frozenset({"item", "index", *OF_PATHS})
_OF_RECORD = frozenset({"item", "index", "id", "length"})
_LATER_OF_RECORD = frozenset({"path"})
"""A record's file is made below the run directory, when its job starts."""


class ForeachItem(Struct, frozen=True):
    """One item: what its placeholders stand for, and what a name gets appended.

    `params` is what people are shown of it, `where` how messages call it. `path` is a file's
    absolute path (glob items), `batch` those of many, `record` is a FASTA record, `gpu` the UUID of
    the card that the job takes.
    """

    values: Mapping[str, str]
    label: str
    params: Mapping[str, str]
    where: str
    path: str | None = None
    batch: tuple[str, ...] | None = None
    record: FastaRecord | None = None
    gpu: str = ""


class Items(Struct, frozen=True):
    """`names` are known at load, of `count` items; `start_names` only once a job starts.

    `unfit`: columns whose names no placeholder can have. `nameless`: it is not known yet which
    names there are.
    """

    names: frozenset[str]
    items: Iterator[ForeachItem]
    count: int
    start_names: frozenset[str] = field(default=frozenset())
    unfit: tuple[str, ...] = ()
    nameless: bool = False


def sources_of(foreach: ForEach, base: Path, home: str) -> list[ForeachSource]:
    """Return the globs or the file that the items of a `foreach` come from, where they do."""
    if not foreach.read:
        return []
    if foreach.kind == "glob":
        return [ForeachSource(home_expanded(glob, home), str(base)) for glob in foreach.values]
    return [ForeachSource(str(resolve(foreach.values[0], base, home)), str(base), True)]


def open_items(foreach: ForEach, base: Path, home: str, counting: Counting | None = None) -> Items:
    """Return the items of a `foreach`, lazy where possible. Raises FieldError.

    `counting`: what counts of files that come and grow; there may be none yet.
    """
    if foreach.kind == "glob":
        items = _of_paths(_glob_all(foreach.values, base, home, counting), base, True)
        # A file's place among the others changes with each one that comes.
        return items if counting is None else replace(items, names=items.names - {"index"})
    if foreach.kind == "values":
        return _of_paths(foreach.values, base)
    file = resolve(foreach.values[0], base, home)
    try:
        if counting is not None and not file.exists():
            return _none_yet(foreach)
        if foreach.kind == "fasta":
            return _of_records(file, counting)
        text = _text(file, counting, quoted=foreach.kind == "csv")
        if foreach.kind == "lines":
            return _of_paths(_lines(text, file, counting is not None), base)
        if counting is not None and not text:
            return _none_yet(foreach)
        return _of_rows(text, file, counting is not None)
    except FieldError as bad:
        raise bad.under(foreach.kind) from None


def names_of(foreach: ForEach) -> Items | None:
    """Return the placeholders that its items would have; None if only the file tells them."""
    if foreach.kind == "csv":
        return None
    if foreach.kind == "cards":
        return Items(frozenset({"item", "index"}), iter(()), 0)
    if foreach.kind == "fasta":
        return Items(_OF_RECORD, iter(()), 0, _LATER_OF_RECORD)
    return Items(_OF_PATH, iter(()), 0)


def _none_yet(foreach: ForEach) -> Items:
    """Return no items. Of a table without a header, the placeholders are not known either."""
    return names_of(foreach) or Items(frozenset(), iter(()), 0, nameless=True)


def resolve(path: str, base: Path, home: str) -> Path:
    """Return an absolute path: `~` is the home directory, a relative path starts at `base`."""
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    return Path(_absolute(os.path.join(base, path), {}))


def _absolute(path: str, real: dict[str, str]) -> str:
    """Return a path to the same file without `.` and `..`; `real` caches directories.

    `link/..` is not where the link stands, so that `..` cannot just be struck out.
    """
    if ".." not in path:
        return os.path.normpath(path)
    directory, name = os.path.split(path)
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    if directory not in real:
        real[directory] = os.path.realpath(directory)
    return os.path.join(real[directory], name)


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def _glob_all(
    patterns: tuple[str, ...], base: Path, home: str, counting: Counting | None
) -> list[str]:
    """Return every match that counts once, sorted naturally (a2 before a10)."""
    found: dict[str, None] = {}
    for i, pattern in enumerate(patterns):
        try:
            matches = _glob(home_expanded(pattern, home), str(base), counting)
        except FieldError as bad:
            raise bad.under(i) from None
        found.update(dict.fromkeys(matches))
    return sorted(found, key=natural)


def _glob(pattern: str, base: str, counting: Counting | None) -> list[str]:
    if counting is None:
        return matches_of(pattern, base)
    sight = sight_of(pattern, base)
    if sight.unread:
        # Nothing found there would mean that all of it is gone.
        raise FieldError(f"{sight.unread}, so that nobody knows what {pattern} matches")
    return [match for match in sight.matches if counting.counts(os.path.join(base, match))]


def _of_paths(values: Sequence[str], base: Path, are_files: bool = False) -> Items:
    """Return items of a glob's matches, or of values or lines, which often are files as well."""
    real: dict[str, str] = {}
    items = (
        _of_path(index, item, _absolute(os.path.join(base, item), real), are_files)
        for index, item in enumerate(values)
    )
    return Items(_OF_PATH, items, len(values))


def _path_values(path: str) -> dict[str, str]:
    """Return what the placeholders of OF_PATHS stand for."""
    directory, name = os.path.split(path)
    stem, ext = os.path.splitext(name)
    return {"path": path, "stem": stem, "name": name, "dir": directory, "ext": ext}


def _of_path(index: int, item: str, path: str, is_file: bool) -> ForeachItem:
    """Return the item of a path: a glob's match, or a value that the job file uses as one."""
    values = {"item": item, "index": str(index), **_path_values(path)}
    label = values["stem"] if is_file else item
    return ForeachItem(values, label, {"item": item}, item, path if is_file else None)


def _lines(text: str, file: Path, may_be_none: bool) -> tuple[str, ...]:
    """Return the lines that are not blank, without line ends."""
    lines = (line.rstrip("\r") for line in text.split("\n"))
    found = tuple(line for line in lines if line.strip())
    if not (found or may_be_none):
        raise FieldError(f"{file}: expected lines, found none")
    return found


def _text(file: Path, counting: Counting | None, quoted: bool) -> str:
    """Return a file's text; of one that grows, the lines that are complete.

    `quoted`: a line's end in quotation marks belongs to a table's cell.
    """
    try:
        data = read_bytes(file, "a text file", MAX_DATA_BYTES)
    except UsageError as error:
        raise FieldError(str(error)) from None
    if counting is not None and not counting.whole(str(file), len(data)):
        data = _complete(data, quoted)
    if b"\0" in data:
        raise FieldError(f"{file}: a NUL byte; expected a text file, is this one binary?")
    if data.count(b"\n") > MAX_LINES:
        raise FieldError(f"{file}: more than {MAX_LINES:,} lines")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FieldError(f"{file}:{line}: not UTF-8; save the file as UTF-8") from None


def _complete(data: bytes, quoted: bool) -> bytes:
    """Return the data up to its last line's end that ends a line of the text, or a table's row."""
    end = data.rfind(b"\n") + 1
    open_quote = quoted and data.count(b'"', 0, end) % 2 == 1
    while open_quote and end:
        before = data.rfind(b"\n", 0, end - 1) + 1
        open_quote = (data.count(b'"', before, end) % 2 == 1) != open_quote
        end = before
    return data[:end]


# ── tables ──────────────────────────────────────────────────────────────────────────────────────


def _of_rows(text: str, file: Path, may_be_none: bool) -> Items:
    """Return a table's rows as items; its first line names the columns."""
    lines = io.StringIO(text, newline="").readlines()
    reader = csv.reader(lines, delimiter=_delimiter(lines, file), strict=True)
    try:
        columns = _columns(next(reader, []), file)
        rows = list(_rows(reader, columns, lines, file))
    except csv.Error as error:
        raise FieldError(f"{file}:{reader.line_num}: not a table: {error}") from None
    if not (rows or may_be_none):
        raise FieldError(f"{file}: expected rows below the header, found none")
    names = [column for column in columns if NAME.fullmatch(column)]
    unfit = tuple(column for column in columns if not NAME.fullmatch(column))
    return Items(frozenset({"item", "index", *names}), iter(rows), len(rows), unfit=unfit)


def _delimiter(lines: list[str], file: Path) -> str:
    """Return the separator of cells: by the file's name, else by its header.

    Semicolons, which spreadsheets write where the comma is the decimal mark, and tabs are meant
    where the header would be one column with commas, whose name no placeholder could have.
    """
    if file.suffix.lower() in (".tsv", ".tab"):
        return "\t"
    header = lines[0] if lines else ""
    columns = {mark: len(next(csv.reader([header], delimiter=mark), [])) for mark in ",;\t"}
    return max(columns, key=lambda mark: columns[mark]) if columns[","] < 2 else ","


def _columns(header: list[str], file: Path) -> list[str]:
    columns = [column.strip() for column in header]
    if not columns:
        raise FieldError(f"{file}:1: expected a header that names the columns, found none")
    for number, column in enumerate(columns, 1):
        if not column:
            raise FieldError(f"{file}:1: column {number} has no name")
        if columns.index(column) != number - 1:
            raise FieldError(f"{file}:1: column {column} twice")
        try:
            check_free(column)
        except FieldError as bad:
            raise FieldError(f"{file}:1: {bad.message}") from None
    return columns


def _rows(reader: Any, columns: list[str], lines: list[str], file: Path) -> Iterator[ForeachItem]:
    """Yield the items of the rows below the header; `reader` is a csv.reader."""
    index, end = 0, reader.line_num
    for row in reader:
        start, end = end, reader.line_num
        if row in ([], [""]):
            continue
        where = f"{file.name}:{start + 1}"
        if len(row) != len(columns):
            raise FieldError(f"{file}:{start + 1}: expected {len(columns)} cells, found {len(row)}")
        params = dict(zip(columns, row, strict=True))
        raw = "".join(lines[start:end]).rstrip("\r\n")
        label = params.get("id") or "-".join(f"{key}={value}" for key, value in params.items())
        yield ForeachItem({**params, "item": raw, "index": str(index)}, label, params, where)
        index += 1


# ── FASTA ─────────────────────────────────────────────────────────────────────────────────────────


def _of_records(file: Path, counting: Counting | None) -> Items:
    found = records(file, counting)
    items = (
        ForeachItem(
            {"item": r.header, "id": r.id, "length": str(r.length), "index": str(i)},
            r.id,
            {"id": r.id, "length": str(r.length)},
            f"record {r.id}",
            record=FastaRecord(str(file), r.offset, r.size, r.digest),
        )
        for i, r in enumerate(found)
    )
    return Items(_OF_RECORD, items, len(found), _LATER_OF_RECORD)
