"""The ends of many attempts in one file: who has which slot, and whose end a slot holds."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from gpulaunch.agent.wire import END_SIZE, end_line, end_record
from gpulaunch.core.model import Exited
from gpulaunch.engines.client import Gone, Pair, Spawner
from gpulaunch.engines.command import Command
from gpulaunch.journal.ends import Ends, EndSlots, attempts_in
from tests.process.support import Slot


def put(file: Path, slot: int, attempt: str) -> None:
    """Write the end of an attempt that succeeded into a slot."""
    line = end_line(end_record(attempt, status=0, pid=7, started=(1.0, 2.0)))
    with open(file, "r+b" if file.exists() else "w+b") as into:
        os.pwrite(into.fileno(), line.ljust(END_SIZE, b"\0"), slot * END_SIZE)


def test_a_slot_is_given_again_only_once_it_was_given_back(tmp_path: Path) -> None:
    slots = EndSlots(tmp_path)
    assert [slots.of(name) for name in ("a.1", "b.1", "a.1", "c.1")] == [0, 1, 0, 2]
    slots.give_back("b.1")
    slots.give_back("never launched.1")
    assert [slots.of(name) for name in ("d.1", "e.1", "b.1")] == [1, 3, 4]


def test_two_supervisors_never_share_a_file(tmp_path: Path) -> None:
    assert EndSlots(tmp_path).file != EndSlots(tmp_path).file


def test_ends_are_found_in_slots_and_in_files_of_their_own(tmp_path: Path) -> None:
    slots = EndSlots(tmp_path)
    put(Path(slots.file), 0, "a.1")
    put(Path(slots.file), 300, "far.1")  # beyond what is read at once
    put(tmp_path / "on-a-node.1", 0, "on-a-node.1")
    ends = Ends(tmp_path)
    for attempt in ("a.1", "far.1", "on-a-node.1"):
        found = ends.of(attempt)
        assert found is not None
        assert (found.attempt, found.end.outcome) == (attempt, Exited(0))
    assert ends.of("b.1") is None
    assert sorted(attempts_in(tmp_path)) == ["a.1", "far.1", "on-a-node.1"]


def test_a_directory_that_is_not_there_holds_no_end(tmp_path: Path) -> None:
    assert Ends(tmp_path / "gone").of("a.1") is None
    assert attempts_in(tmp_path / "gone") == []


def test_ends_that_a_journal_lost_are_forgotten_and_those_that_are_waited_for_stay(
    tmp_path: Path,
) -> None:
    earlier, slots = EndSlots(tmp_path), EndSlots(tmp_path)
    put(Path(earlier.file), 0, "lost.2")
    put(Path(earlier.file), 1, "waited-for.1")
    put(Path(slots.file), 0, "own.1")
    slots.forget_earlier({"waited-for.1"})
    assert sorted(attempts_in(tmp_path)) == ["own.1", "waited-for.1"]


def test_the_files_go_once_every_slot_was_given_back(tmp_path: Path) -> None:
    slots = EndSlots(tmp_path)
    put(Path(slots.file), slots.of("a.1"), "a.1")
    put(tmp_path / "on-a-node.1", 0, "on-a-node.1")
    slots.delete()
    assert sorted(attempts_in(tmp_path)) == ["a.1", "on-a-node.1"]
    slots.give_back("a.1")
    slots.delete()
    assert attempts_in(tmp_path) == ["on-a-node.1"]


def test_keepers_write_one_end_after_the_other_into_a_slot(tmp_path: Path, keeper: str) -> None:
    slots = EndSlots(tmp_path)
    (tmp_path / "logs").mkdir()
    long = str(tmp_path / ("missing" * 30))
    with Spawner(keeper) as spawner, Slot(spawner, tmp_path / "logs") as slot:
        for attempt, outputs in (("job.1", (long,)), ("job.2", ())):
            slot.run("true", end=slots.file, slot=slots.of(attempt), outputs=outputs)
            assert attempts_in(tmp_path) == [attempt]
            slots.give_back(attempt)
    assert os.stat(slots.file).st_size == END_SIZE


def test_the_end_that_a_slot_held_before_is_not_taken_for_that_of_the_attempt(
    tmp_path: Path,
) -> None:
    slots = EndSlots(tmp_path)
    put(Path(slots.file), 0, "before.1")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    pair = Pair(ours)
    pair.launch(Command("job.1", ("true",), str(tmp_path / "log"), slots.file, slots.of("job.1")))
    theirs.recv(1 << 16)  # the launch: it may have been begun
    theirs.close()
    assert pair.on_readable() == [Gone("job.1")]
    pair.close()
