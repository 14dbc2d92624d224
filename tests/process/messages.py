"""Messages to keepers: real ones, spoilt ones, and how C and Python read them.

A seed gives the same messages again. The keepers read a launch in C. The nodes of a cluster and the
children of preload servers read it in Python. Both read, and refuse, the same messages.
"""

from __future__ import annotations

import binascii
import json
import os
import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpulaunch.agent.launch import LaunchOrder, launch_message
from gpulaunch.agent.wire import MessageFields, shown
from gpulaunch.core.model import WarnPolicy
from gpulaunch.engines.client import for_the_child, for_the_keeper
from gpulaunch.engines.command import Command, Main, Task

PARTS = ["a", "é", "€", "😀", "\udcff", "\udce2\udc82", "\n", '"', "\\", "\x7f", "\x01", "…" * 9]
FIELDS = [
    *(b"", b"0", b"1", b"2", b"5", b"-1", b"+1", b" 1", b"1 ", b"01", b"1_0", b"0x10", b"1.5"),
    *(b"1.", b".5", b"1e3", b"1e-3", b"1e400", b"1e-400", b"1e", b"-0.0", b"inf", b"nan", b"1,5"),
    *(b"255", b"256", b"65536", b"4294967296", *(b"9" * count for count in (17, 18, 19, 40))),
    *(b"=", b"=x", b"A", b"A=b=c", b"{", b"{}", b"launch", b"\xd9\xa1", b"\xff", b"\xe2\x82"),
    *(b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
]
"""What stands for a number, a list's length, a text, and is one only to some who read it."""


# ── Messages ────────────────────────────────────────────────────────────────────────────────────


def word(chance: random.Random) -> str:
    return "".join(chance.choice(PARTS) for _ in range(chance.randrange(9)))


def some_command(chance: random.Random) -> Command:
    """A command that may be, with or without all that one can have."""

    def maybe(make: Callable[[], Any]) -> Any:
        return make() if chance.random() < 0.5 else None

    def seconds() -> float:
        return chance.choice([0.0, 1.5, 1e-05, 3600, 1e16, chance.random()])

    some = tuple(word(chance) for _ in range(chance.randrange(6)))
    task = Task(
        word(chance),
        {"a": word(chance)},
        items=maybe(lambda: chance.randrange(9)),
        memory=maybe(lambda: chance.randrange(2**45)),
        load_timeout=maybe(seconds),
    )
    return Command(
        word(chance) + ".1",
        (word(chance), *some),
        log=word(chance),
        end=word(chance),
        slot=maybe(lambda: chance.randrange(2**16)),
        cwd=word(chance),
        env_set={f"V{n}": value for n, value in enumerate(some)},
        env_unset=some,
        timeout=maybe(seconds),
        idle_timeout=maybe(seconds),
        warn=maybe(lambda: WarnPolicy(chance.randrange(1, 65), seconds())),
        grace=seconds(),
        outputs=some,
        kept_outputs=some[1:],
        success_codes=frozenset({chance.randrange(256), 0}),
        hidden=maybe(lambda: tuple(f"/dev/{one}" for one in some)),
        cpus=tuple(range(chance.choice([0, 0, 1, 300]))),
        task=maybe(lambda: task),
        main=maybe(lambda: Main(("python", word(chance)))),
    )


def some_message(chance: random.Random) -> bytes:
    command = some_command(chance)
    keeper = for_the_keeper(command)
    keeper |= {"cgroup": os.fsencode(word(chance)).decode("latin-1")}
    keeper |= {"oom_kills": os.fsencode(word(chance)).decode("latin-1"), "term_by": word(chance)}
    return launch_message(keeper, for_the_child(command))


def spoilt(message: bytes, chance: random.Random) -> bytes:
    """The message with a few fields or bytes changed, mostly so that it begins as a launch."""
    data = bytearray(message)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        fields = bytes(data).split(b"\0")
        at = chance.randrange(len(fields))
        place = chance.randrange(len(data) + 1)
        match chance.randrange(8):
            case 0 | 1 | 2:
                fields[at] = chance.choice(FIELDS)
            case 3:
                fields.insert(at, chance.choice(FIELDS))
            case 4:
                del fields[at]
            case 5:
                fields[at] += chance.choice(FIELDS)
            case 6:
                data[place : place + chance.randrange(3)] = chance.randbytes(chance.randrange(4))
            case 7:
                del data[place:]
        if fields != bytes(data).split(b"\0") and data.count(0) == message.count(0):
            data = bytearray(b"\0".join(fields))
        elif chance.random() < 0.5:
            data = bytearray(b"\0".join(fields)) if fields else data
    return bytes(data)


# ── How they are read ───────────────────────────────────────────────────────────────────────────


def read_by_python(message: bytes) -> list[Any]:
    """What parse.c prints, by Python's own reading; the checksum alone where it refuses.

    Nothing where it refuses the part that is for interpreters alone: the others do not look at it.
    """
    fields = MessageFields(message)
    verb = fields.next()
    start = [binascii.crc32(message)]
    if verb != b"launch":
        return [*start, _shown(verb)]
    try:
        order = LaunchOrder(fields)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return []
    except ValueError:
        return start
    env = [b"%s=%s" % entry for entry in order.env_set.items()]
    limits = [-1 if one is None else one for one in (order.slot, order.timeout, order.idle_timeout)]
    texts = [os.fsencode(order.id), order.end, order.log, order.cwd, order.oom_kills, order.cgroup]
    told = [*start, *map(_shown, [*texts, order.term_by.encode("utf-8", "surrogateescape")])]
    told += [*limits, order.grace, order.warn_signal or 0, order.warn_before]
    told += [[len(order.success_codes), *order.success_codes]]
    told += map(_all_shown, (order.outputs, order.kept_outputs, order.argv, env, order.env_unset))
    told += [None if order.hidden is None else _all_shown(order.hidden)]
    told += [[len(order.cpus), *order.cpus]]
    if item := order.item:
        numbers = (item.items, item.memory, item.load_timeout)
        told += [_shown(item.key), _shown(item.item)]
        told += [-1 if number is None else number for number in numbers]
    return told


def differences(parser: Path, messages: Sequence[bytes]) -> list[str]:
    """Say of each message that both do not read alike what each of them reads."""
    pairs = zip(messages, map(read_by_python, messages), read_by_c(parser, messages), strict=True)
    return [
        f"{message!r}:\n  Python {theirs}\n  C {ours}"
        for message, theirs, ours in pairs
        if theirs and theirs != ours
    ]


def clip(text: str, limit: int) -> str:
    """As much of a text as JSON writes in so many characters."""
    while len(json.dumps(text)) > limit:
        text = text[: len(text) * 4 // 5] + "…"
    return text


def _shown(field: bytes) -> list[str]:
    return [
        field.decode("utf-8", "surrogateescape"),
        json.loads(json.dumps(clip(shown(field), 60))),
    ]


def _all_shown(fields: Sequence[bytes]) -> list[Any]:
    return [len(fields), *map(_shown, fields)]


def read_by_c(parser: Path, messages: Sequence[bytes]) -> list[list[Any]]:
    """What parse.c printed of each; AssertionError names the message that ended it."""
    data = b"".join(struct.pack("I", len(one)) + one for one in messages)
    done = subprocess.run([parser], input=data, capture_output=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines(True) if line.endswith(b"\n")]
    if done.returncode:
        raise AssertionError(f"{messages[len(found)]!r}:\n{done.stderr.decode()}")
    return found
