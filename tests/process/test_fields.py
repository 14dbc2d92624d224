"""What keepers are told: commands and their like as fields."""

from __future__ import annotations

import json
import os
import socket

import pytest

from gpulaunch.agent.client import spawn
from gpulaunch.agent.launch import LaunchOrder, launch_message, stop_message
from gpulaunch.agent.wire import (
    MAX_MESSAGE,
    UNKNOWN_PROTOCOL,
    MessageFields,
    packed,
    receive_fields,
    send_fields,
)
from gpulaunch.engines.client import for_the_child, for_the_keeper
from gpulaunch.engines.command import Command, Task


def read(command: Command) -> LaunchOrder:
    fields = MessageFields(launch_message(for_the_keeper(command), for_the_child(command)))
    assert fields.next() == b"launch"
    return LaunchOrder(fields)


def test_a_command_comes_as_it_was_sent() -> None:
    odd = os.fsdecode(b"/r\xe9sum\xc3\xa9\n")
    sent = Command(
        "jüb\udce9.1",
        ("a", "", odd),
        log=odd,
        end="/end",
        slot=7,
        cwd="/c",
        env_set={"A": "b=c", "B": ""},
        env_unset=("C",),
        timeout=2,
        idle_timeout=0.5,
        grace=0.0,
        outputs=(odd, "/x/*"),
        kept_outputs=("/k",),
        success_codes=frozenset({0, 3}),
    )
    got = read(sent)
    assert (got.id, got.argv, got.log) == (
        sent.attempt,
        [b"a", b"", os.fsencode(odd)],
        os.fsencode(odd),
    )
    assert (got.end, got.slot, got.cwd) == (b"/end", 7, b"/c")
    assert got.env_set == {b"A": b"b=c", b"B": b""}
    assert (got.env_unset, got.outputs) == ([b"C"], [os.fsencode(odd), b"/x/*"])
    assert got.kept_outputs == [b"/k"]
    assert (got.timeout, got.idle_timeout, got.grace) == (2.0, 0.5, 0.0)
    assert (got.success_codes, got.hidden, got.item, got.main) == ([0, 3], None, None, None)


def test_what_a_command_lacks_is_told_from_what_is_empty() -> None:
    got = read(Command("a.1", ("true",), log="/l", end="/e", hidden=()))
    assert (got.slot, got.timeout, got.idle_timeout) == (None, None, None)
    assert got.hidden == []
    item = read(Command("a.1", ("true",), log="/l", end="/e", task=Task("ü", {"x": "ü"}))).item
    assert item is not None
    assert (item.key, item.items, item.memory, item.load_timeout) == ("ü".encode(), *[None] * 3)
    line = item.numbered(7, fresh=True)
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "item": 7,
        "fresh": True,
        "log": "/l",
        "cwd": "/",
        "env": {},
        "values": {"x": "ü"},
    }


def test_a_workers_limits_come_as_they_were_sent() -> None:
    task = Task("k", items=3, memory=2**40, load_timeout=0.5)
    item = read(Command("a.1", ("true",), log="/l", end="/e", task=task)).item
    assert item is not None
    assert (item.items, item.memory, item.load_timeout) == (3, 2**40, 0.5)


@pytest.mark.parametrize(
    ("at", "field"),
    [
        (14, b"1000000000"),
        (14, b"-1"),
        (14, b"1_0"),
        (15, b"0x0"),
        (12, b"0"),
        (12, b"65"),
        (13, b"-1"),
        (6, b"inf"),
        (6, b" 1"),
        (3, b"+1"),
        (18, b"0"),
        (24, b"5"),
        (26, b"\x00"),
    ],
)
def test_what_is_no_command_is_refused(at: int, field: bytes) -> None:
    command = Command("a.1", ("true",), log="/l", end="/e", timeout=1.5)
    fields = launch_message(for_the_keeper(command), for_the_child(command)).split(b"\0")
    LaunchOrder(taken(b"\0".join(fields)))
    with pytest.raises(ValueError, match=r"expected"):
        LaunchOrder(taken(b"\0".join([*fields[:at], field, *fields[at + 1 :]])))


def taken(message: bytes) -> MessageFields:
    fields = MessageFields(message)
    assert fields.next() == b"launch"
    return fields


def test_a_stop_names_its_attempt_and_who_wants_it_in_any_script() -> None:
    fields = MessageFields(stop_message("jöb.1", "cancelled", "Zoë", now=True))
    assert (fields.next(), fields.text(), fields.next(), fields.text()) == (
        b"stop",
        "jöb.1",
        b"cancelled",
        "Zoë",
    )
    assert fields.flag()


@pytest.mark.parametrize("size", [MAX_MESSAGE - 1, MAX_MESSAGE, 10 * MAX_MESSAGE])
def test_a_message_of_any_length_comes_whole_with_its_descriptors(size: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read_end, write_end = os.pipe()
    with ours, theirs:
        send_fields(ours, packed("x" * size), [write_end])
        message, fds = receive_fields(theirs)
    assert message is not None
    assert message.next() == b"x" * size
    os.close(write_end)
    (came,) = fds
    os.write(came, b"!")
    os.close(came)
    assert os.read(read_end, 2) == b"!"
    os.close(read_end)


def test_a_spawner_that_does_not_know_the_protocol_exits(keeper: str) -> None:
    process, control = spawn([keeper], os.environ)
    with control:
        send_fields(control, packed("pair", "999", "0", "0", "0", "0"))
        assert process.wait(60) == UNKNOWN_PROTOCOL
