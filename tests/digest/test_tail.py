from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.observe.present.tail import (
    LINE,
    WINDOW,
    Folder,
    fold,
    fold_line,
    last_lines,
    read_tail,
)


def test_a_progress_bar_shows_its_last_state_only() -> None:
    bar = b"".join(b"\r%3d%%|%-10s| %d/100" % (n, b"#" * (n // 10), n) for n in range(101))
    assert last_lines(b"loading\n" + bar + b"\ndone\n") == (
        "loading",
        "100%|##########| 100/100",
        "done",
    )


def test_nested_bars_that_move_the_cursor_fold_too() -> None:
    log = b"".join(
        b"\router:  %d%%|# |\n\rinner: %d%%|# |\x1b[A" % (n, n) for n in range(0, 100, 10)
    )
    assert last_lines(log + b"\nfinished\n")[-1] == "finished"
    inner = b"".join(b"inner: %d%%|##|\n" % n for n in range(0, 101, 20))
    assert last_lines(inner + b"end\n") == ("inner: 100%|##|", "end")


def test_windows_line_ends_are_not_progress_bars() -> None:
    assert last_lines(b"one\r\ntwo\r\n") == ("one", "two")


def test_colours_titles_and_links_go_control_characters_are_shown() -> None:
    log = b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x \x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\ \x00\n"
    assert last_lines(log) == ("red x link \\x00",)


def test_an_unfinished_escape_sequence_never_reaches_the_terminal() -> None:
    assert "\x1b" not in fold_line("a\x1b]0;never ended\x1b[")
    assert last_lines(b"a\x1b") == ("a\\x1b",)


def test_blank_lines_are_dropped_and_only_the_last_are_kept() -> None:
    log = b"".join(b"line %d\n\n   \n" % n for n in range(50))
    assert last_lines(log, 3) == ("line 47", "line 48", "line 49")


def test_backspaces_erase() -> None:
    assert fold_line("work |\b/\b-\bdone") == "work done"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert last_lines(b"caf\xe9 \xff\n") == ("caf� �",)


def test_the_exception_is_kept_though_much_was_written_after_it() -> None:
    log = (
        b"start\nTraceback (most recent call last):\n"
        b'  File "a.py", line 1, in <module>\n    boom()\n'
        b"RuntimeError: CUDA error: out of luck\n" + b"wandb: syncing\n" * 30
    )
    assert last_lines(log, 4) == (
        "RuntimeError: CUDA error: out of luck",
        *("wandb: syncing",) * 3,
    )


def test_of_chained_tracebacks_the_last_counts_and_torchrun_prefixes_are_known() -> None:
    log = (
        b"[rank0]: Traceback (most recent call last):\n[rank0]:   File x\n[rank0]: KeyError: 1\n"
        b"[rank0]: Traceback (most recent call last):\n[rank0]:   File y\n[rank0]: ValueError: 2\n"
    ) + b"bye\n" * 9
    assert last_lines(log, 3) == ("[rank0]: ValueError: 2", "bye", "bye")


def test_one_line_of_100_mb_is_read_at_its_end_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(100_000_000)
        file.seek(0, 2)
        file.write("ü".encode() * 300 + b" the end")
    started = time.process_time()
    (line,) = read_tail(log)
    assert time.process_time() - started < 2
    assert line.startswith("…ü")
    assert line.endswith(" the end")
    assert len(line) <= LINE


def test_the_first_line_of_the_window_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * WINDOW + b" cut\nwhole\n")
    assert read_tail(log) == ("whole",)


def test_long_lines_are_shortened() -> None:
    (line,) = last_lines(b"y" * 5000)
    assert len(line) == LINE
    assert line.endswith("…")


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert read_tail(tmp_path / "none") == ()
    assert read_tail(tmp_path) == ()


def test_hostile_escapes_take_linear_time() -> None:
    started = time.process_time()
    last_lines(b"\x1b]" * (WINDOW // 2))
    last_lines(b"\x1b[" * (WINDOW // 2))
    last_lines(b"\x1b[" + b"1;" * (WINDOW // 2))
    last_lines(b"1%" * (WINDOW // 2))
    assert time.process_time() - started < 5


def test_following_keeps_blank_lines_and_folds_bars_across_pieces() -> None:
    pieces = [b"one\n\ntw", b"o\n 10%|\r 20", b"%|\r 30%|\nlast ", b"word"]
    assert "".join(fold(pieces)) == "one\n\ntwo\n 30%|\nlast word\n"


def test_following_a_bar_for_days_keeps_memory_bounded() -> None:
    folder = Folder()
    for n in range(20_000):
        assert folder.feed(b"\r%5d%%|" % n + b"#" * 40) == ""
        assert len(folder._rest) < 2 * WINDOW
    assert folder.close() == "19999%|" + "#" * 40 + "\n"


def test_following_an_endless_line_passes_it_on_in_parts() -> None:
    text = "".join(fold([b"z" * 10_000] * 100))
    assert text == "z" * 1_000_000 + "\n"


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_following_is_the_same_however_the_bytes_are_cut(pieces: list[bytes]) -> None:
    assert "".join(fold(pieces)) == "".join(fold([b"".join(pieces)]))


@given(st.binary())
def test_no_log_can_send_an_escape_sequence(data: bytes) -> None:
    shown = "".join(last_lines(data)) + "".join(fold([data])).replace("\n", "")
    assert all(char >= " " and not "\x7f" <= char <= "\x9f" for char in shown)


@pytest.mark.parametrize("limit", [1, 2, 6])
def test_never_more_lines_than_asked(limit: int) -> None:
    assert len(last_lines(b"a\nValueError: x\n" + b"b\n" * 20, limit)) == limit


def test_a_report_of_what_to_change_stands_for_the_end_of_a_log() -> None:
    log = b"""\
RuntimeError: Expected all tensors to be on the same device
gpulaunch explain: RuntimeError: Expected all tensors to be on the same device
  where: cat.py:23, in forward
      return torch.cat([past, keys], dim=1)
  to change:
    cat.py:33: past is made on the CPU: torch.zeros(1, 4, 8, device='cuda:0')
  every frame's tensors, from the innermost out, the libraries' last:
    cat.py:23, in forward
      hidden           cuda:0  (1, 1, 8) float32
gpulaunch explain: end of the report
[W] a library's last words
"""
    assert last_lines(log) == (
        "gpulaunch explain: RuntimeError: Expected all tensors to be on the same device",
        "  where: cat.py:23, in forward",
        "      return torch.cat([past, keys], dim=1)",
        "  to change:",
        "    cat.py:33: past is made on the CPU: torch.zeros(1, 4, 8, device='cuda:0')",
    )
