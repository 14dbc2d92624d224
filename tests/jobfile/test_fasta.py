"""Lines of FASTA files that are longer than what is read at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.jobfile import items
from gpulaunch.jobfile.items import digest_of, records
from gpulaunch.jobfile.mistakes import FieldError


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "PIECE", 8)
    monkeypatch.setattr(items, "MAX_RECORD_BYTES", 64)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.fasta"


def test_a_long_line_is_read_in_pieces_and_is_one_record(file: Path) -> None:
    first, second = b">a\n" + b"ACDE>FGH" * 5 + b"\n", b">b\nAC\n"
    file.write_bytes(first + second)
    a, b = records(file)
    assert (a.length, a.offset, a.size, a.digest) == (40, 0, 44, digest_of(first))
    assert (b.line, b.length, b.offset, b.digest) == (3, 2, 44, digest_of(second))


class Growing:
    def whole(self, path: str, size: int) -> bool:
        return False


def test_of_a_growing_file_the_last_record_is_left_out_however_long(file: Path) -> None:
    file.write_bytes(b">a\nACDEFGHIKLMN\n>b\nACDEFGHI>LMN")
    (a,) = records(file, Growing())
    assert (a.id, a.length) == ("a", 12)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b">a\nA\n>" + b"b" * 99, "x.fasta:3: a header of more than"),
        (b">a\nA\n>b\n" + b"C" * 99, "x.fasta:4: a record of more than"),
        (b">a\n" + b"C\n" * 99, "x.fasta:32: a record of more than"),
        (b">a\nACDEFGHIKLMN\0\n", "x.fasta:2: a NUL byte"),
        (b"ACDEFGHIKLMN", "x.fasta:1: expected a FASTA record's >ID, found 'ACDEFGHI'"),
    ],
)
def test_what_cannot_be_a_record_is_named_with_its_line(
    file: Path, content: bytes, words: str
) -> None:
    file.write_bytes(content)
    with pytest.raises(FieldError) as caught:
        records(file)
    assert words in str(caught.value)
    if "more than" in words:
        with pytest.raises(FieldError, match="more than"):
            records(file, Growing())
