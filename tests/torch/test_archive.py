"""An archive with members replaced is a whole archive, and its original is neither copied nor
touched."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest

pytest.importorskip("torch")

from gpulaunch.torch.archive import Moves, Overlay, moved

NOWHERE = Moves(None)


def archive(**members: bytes) -> io.BytesIO:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as target:
        for name, content in members.items():
            target.writestr(name, content)
    return out


def contents(stream: Any) -> dict[str, bytes]:
    with zipfile.ZipFile(stream) as opened:
        assert opened.testzip() is None
        names = opened.namelist()
        assert len(set(names)) == len(names)
        return {name: opened.read(name) for name in names}


def replaced(stream: Any, contents: dict[str, bytes]) -> Overlay:
    """The archive with these contents in place of a member's own."""

    def change_of(archive: zipfile.ZipFile, member: str) -> Any:
        new = contents.get(member)
        return None if new is None else lambda old, moves: new

    return moved(stream, NOWHERE, change_of)


def test_members_are_replaced_whatever_their_length() -> None:
    old = archive(a=b"1" * 1000, b=b"2" * 5000, c=b"")
    before = old.getvalue()
    new = replaced(old, {"a": b"x", "c": b"y" * 9000})
    assert contents(new) == {"a": b"x", "b": b"2" * 5000, "c": b"y" * 9000}
    assert old.getvalue() == before


def test_what_is_kept_is_not_read() -> None:
    class Counting(io.BytesIO):
        largest = 0

        def read(self, size: int | None = -1) -> bytes:
            found = super().read(size)
            self.largest = max(self.largest, len(found))
            return found

    old = Counting(archive(big=b"0" * 10_000_000, small=b"1").getvalue())
    new = replaced(old, {"small": b"2"})
    assert old.largest < 1_000_000
    assert contents(new)["small"] == b"2"


def test_an_archive_that_needs_nothing_keeps_its_bytes() -> None:
    old = archive(a=b"1")
    assert replaced(old, {}).read() == old.getvalue()


def test_what_is_no_archive_is_an_error() -> None:
    with pytest.raises(zipfile.BadZipFile):
        replaced(io.BytesIO(b"PK\x03\x04 and no more"), {})


def test_reads_go_across_the_seam() -> None:
    over = Overlay(io.BytesIO(b"0123456789"), 4)
    over.seek(4)
    assert over.write(b"abc") == 3
    assert over.tell() == 7
    over.seek(2)
    assert over.read(4) == b"23ab"
    assert over.read() == b"c789"
    assert over.read(5) == b""
    over.seek(-3, io.SEEK_END)
    buffer = bytearray(8)
    assert over.readinto(buffer) == 3
    assert buffer[:3] == b"789"
    over.seek(5)
    over.truncate()
    assert over.seek(0, io.SEEK_END) == 5


def test_a_stream_that_gives_less_than_asked_for_is_asked_again() -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(2 if size is None or size > 2 else size)

    over = Overlay(io.BytesIO(b"0123456789"), 8)
    over._stream = Slow(b"0123456789")
    assert over.read(9) == b"012345678"
