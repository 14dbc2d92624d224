"""The compiled keepers beside Python's: the same ends, the same messages, and which are chosen."""

from __future__ import annotations

import binascii
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpulaunch.engines import keepers
from gpulaunch.farside.keeper.end import clip
from gpulaunch.farside.launch import LaunchOrder, launch_message
from gpulaunch.farside.wire import MessageFields, line_of_end, shown
from gpulaunch.process import native
from gpulaunch.process.client import Spawner, for_the_child, for_the_keeper
from gpulaunch.process.command import Command, Main, Task
from tests.process.support import Slot, compiled

SOURCES = native.PROGRAM.parent
ODD = os.fsdecode(b'/r\xe9sum\xc3\xa9\xe2\x82 \xf0\x9f\x98\x80\n\x7f"\\')


# ── Ends ────────────────────────────────────────────────────────────────────────────────────────


def pattern_outputs(folder: Path) -> tuple[str, ...]:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / ".hidden").write_text("x")
    os.utime(folder / ".hidden", (2**32, 2**32))
    (folder / "deep" / "er" / "old").write_text("x")
    os.utime(folder / "deep" / "er" / "old", (1, 1))
    (folder / "deep" / "none").touch()
    names = [
        "**/old",
        "deep/**",
        "*",
        "[!e-z]*/none",
        "[]x]",
        "em*/",
        "?idden",
        "**/er/**/old",
        "no/*",
    ]
    names += ["no/*", "[z-a]*", "deep/[", "d*/e*/o[a-l]d", "**/.hid*"]
    return tuple(str(folder / name) for name in names)


Make = Callable[[Path], tuple[tuple[str, ...], dict[str, Any]]]
ENDS: dict[str, Make] = {
    "success": lambda _: (("true",), {}),
    "exit code": lambda _: (("sh", "-c", "exit 3"), {}),
    "signal": lambda _: (("sh", "-c", "kill -SEGV $$"), {}),
    "leftovers": lambda _: (("sh", "-c", "setsid sleep 9 & setsid sleep 9 & sleep 0.2"), {}),
    "no program": lambda _: (("/no/such",), {}),
    "odd program": lambda _: ((ODD,), {}),
    "not in PATH": lambda _: (("no-such",), {}),
    "a directory": lambda folder: ((str(folder),), {}),
    "no execution": lambda folder: ((str(file_of(folder, "x")),), {}),
    "no interpreter": lambda folder: ((str(file_of(folder, "#! /no/such -x\n", 0o755)),), {}),
    "Windows": lambda folder: ((str(file_of(folder, "#!/bin/sh\r\n", 0o755)),), {}),
    "no format": lambda folder: ((str(file_of(folder, "x", 0o755)),), {}),
    "nothing in it": lambda folder: ((str(file_of(folder, "#!\n", 0o755)),), {}),
    "a dead link": lambda folder: ((str(link_of(folder)),), {}),
    "too long": lambda _: (("true", *["x" * 100_000] * 30), {}),
    "no directory": lambda _: (("true",), {"cwd": "/no/such"}),
    "a file as directory": lambda _: (("true",), {"cwd": "/etc/hostname"}),
    "an odd directory": lambda _: (("true",), {"cwd": ODD}),
    "a log that exists": lambda _: (("true",), {"log": "/etc/hostname"}),
    "timeout": lambda _: (("sleep", "9"), {"timeout": 0.2, "grace": 0.1}),
    "idle": lambda _: (("sleep", "9"), {"idle_timeout": 0.25, "grace": 0.1}),
    "outputs": lambda folder: (("true",), {"outputs": pattern_outputs(folder)}),
    "odd outputs": lambda _: (("true",), {"outputs": (ODD, "/etc/hostname", "/etc/hostname/x")}),
    "long outputs": lambda _: (
        ("true",),
        {"outputs": tuple(f"/no/{n}/" + "é" * 400 for n in range(50))},
    ),
    "many outputs": lambda _: (("true",), {"outputs": tuple(f"/no/{n}" for n in range(300))}),
    "code": lambda _: (
        ("sh", "-c", "exit 4"),
        {"success_codes": frozenset({4}), "outputs": ("/no",)},
    ),
    "a server that is gone": lambda _: (("true",), {"main": Main(("python",))}),
    "item": lambda _: item("0 0 0 ", "1 0 0 "),
    "item's code": lambda _: item("0 0 0 ", "1 3 0 "),
    "item that spoils": lambda _: item("0 0 0 ", "1 0 1 "),
    "item's error": lambda _: item("0 0 0 ", "1 0 0 no r\\351sum\\303\\251"),
    "item's outputs": lambda _: item("0 0 0 ", "1 0 0 ", outputs=("/no", "/etc/hostname")),
    "item that is late": lambda _: item("0 0 0 ", timeout=0.2),
    "item that is silent": lambda _: item("0 0 0 ", idle_timeout=0.25),
    "loading that is late": lambda _: item(load_timeout=0.2, timeout=9.0, idle_timeout=0.1),
    "an answer cut short": lambda _: item("0 0 0 ", "1 0 0"),
    "no answer": lambda _: item("0 0 0 ", after="exit 0"),
    "no answer, and a code": lambda _: item("0 0 0 ", after="exit 5"),
    "an answer of another item": lambda _: item("0 0 0 ", "2 0 0 "),
    "loaded twice": lambda _: item("0 0 0 ", "0 0 0 "),
    "no worker": lambda _: (("/no/such",), {"task": Task("k")}),
}


def item(
    *answers: str, after: str = "exec sleep 9", load_timeout: float | None = None, **limits: Any
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """A worker whose answers are these, whatever it is handed."""
    said = "".join(f"{answer}\\n" for answer in answers)
    task = Task("k", load_timeout=load_timeout)
    return ("bash", "-c", f"printf '{said}' >&3; {after}"), {"task": task, "grace": 0.1, **limits}


def file_of(folder: Path, text: str, mode: int = 0o644) -> Path:
    path = folder / "program"
    path.write_text(text)
    path.chmod(mode)
    return path


def link_of(folder: Path) -> Path:
    path = folder / "link"
    path.symlink_to("/no/such")
    return path


def end_of(program: str | None, folder: Path, made: Make) -> tuple[bytes, bool, str, bool]:
    """The line in the end's file, and what the keepers report beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    logs, data = folder / "logs", folder / "data"
    logs.mkdir(parents=True)
    data.mkdir()
    argv, limits = made(data)
    with Spawner(program=program) as spawner, Slot(spawner, logs) as slot:
        over = slot.run(*argv, **limits)
        line = line_of_end(slot.end_file.read_bytes())
    assert line is not None
    line = re.sub(rb'"(pid":\d+|(started|ended)":\[[^]]*\])', rb'"\2"', line)
    return line, over.kept, over.note, over.cpu is None


@pytest.mark.parametrize("case", ENDS)
def test_both_write_the_same_end_byte_for_byte(case: str, tmp_path: Path, program: str) -> None:
    ends = [end_of(keepers, tmp_path / "x", ENDS[case]) for keepers in (program, None)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("seed", range(4))
def test_both_judge_a_workers_answers_alike(seed: int, tmp_path: Path, program: str) -> None:
    """The last one is invalid, so that each worker is killed for what it says."""
    chance = random.Random(seed)
    valid = [b"0 0 0 ", b"1 0 0 ", b"1 7 0 e\xe9\xff", b"1 3 1 ", b"01 00 0  x "]
    invalid = [b"", b"\0", b"1 3 x ", b"1 0000000000 0 ", b"1 256 0 ", b"2 0 0 ", b"1 0 0 a\0b"]
    invalid += [b"-1 0 0 ", "١ 0 0 ".encode(), b"x" * 3000]
    for _ in range(8):
        some = [chance.choice(chance.choice([valid, invalid])) for _ in range(chance.randrange(4))]
        said = b"\n".join([*some, b"none", b""])[-4096:]  # so much comes in one piece
        script = f"import os, time; os.write(3, {said!r}); time.sleep(9)"
        job = (sys.executable, "-I", "-S", "-c", script), {"task": Task("k"), "grace": 0.1}
        ends = [
            end_of(keepers, tmp_path / "x", lambda _, job=job: job) for keepers in (program, None)
        ]
        assert ends[0] == ends[1], said
        assert "answer that is none" in ends[0][2]


@pytest.fixture
def program(request: pytest.FixtureRequest) -> str:
    """The compiled keepers, watched by the sanitizers where that is asked for."""
    watched = os.environ.get("GPULAUNCH_TEST_SANITIZE")
    return str(request.getfixturevalue("sanitized")) if watched else chosen()


def chosen() -> str:
    if not native.PROGRAM.exists():
        pytest.skip("the keepers' program was not built here (no C compiler)")
    return str(native.PROGRAM)


# ── What it reads and writes ────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [SOURCES / name for name in ("fields.c", "text.c", "tools.c")]
    own = Path(__file__).with_name("parse.c")
    return compiled(tmp_path_factory.mktemp("parse") / "parse", [own, *sources])


def told(parser: Path, messages: Sequence[bytes]) -> list[str]:
    data = b"".join(struct.pack("I", len(one)) + one for one in messages)
    done = subprocess.run([parser], input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def expected(message: bytes) -> str:
    """What parse.c prints, by Python's own reading."""

    def show(field: bytes) -> str:
        clipped = clip(shown(field), 60)
        return json.dumps(field.decode("utf-8", "surrogateescape")) + json.dumps(clipped)

    fields = MessageFields(message)
    verb = fields.next()
    start = f"{binascii.crc32(message):08x} "
    if verb != b"launch":
        return start + show(verb)
    order = LaunchOrder(fields)
    told = "".join(map(show, (order.id.encode("utf-8", "surrogateescape"), order.end)))
    told += show(order.log) + show(order.cwd)
    codes = [str(code).encode() for code in order.success_codes]
    env = [b"%s=%s" % entry for entry in order.env_set.items()]
    hidden = order.hidden or []
    for many in (codes, order.outputs, order.argv, env, order.env_unset, hidden):
        told += f"[{len(many)}]" + "".join(map(show, many))
    told += str(order.hidden is not None)
    if order.item:
        told += f"{order.item.items or -1} {order.item.memory or -1}"
        told += show(order.item.key) + show(order.item.item)
    return start + told


def word(chance: random.Random) -> str:
    parts = [
        "a",
        "é",
        "€",
        "😀",
        "\udcff",
        "\udce2\udc82",
        "\n",
        '"',
        "\\",
        "\x7f",
        "\x01",
        "…" * 9,
    ]
    return "".join(chance.choice(parts) for _ in range(chance.randrange(9)))


@pytest.mark.parametrize("seed", range(4))
def test_commands_are_read_as_python_reads_them(parser: Path, seed: int) -> None:
    chance = random.Random(seed)
    messages = []
    for number in range(300):
        some = [word(chance) for _ in range(chance.randrange(6))]
        command = Command(
            word(chance) + ".1",
            (word(chance), *some),
            log=word(chance),
            end=word(chance),
            cwd=word(chance),
            env_set={f"V{n}": value for n, value in enumerate(some)},
            env_unset=tuple(some),
            outputs=tuple(some),
            success_codes=frozenset({number % 256, 0}),
            timeout=chance.choice([None, 1.5]),
            task=chance.choice([None, Task(word(chance), {"a": word(chance)}, items=number + 1)]),
            hidden=chance.choice([None, tuple(f"/dev/{one}" for one in some)]),
        )
        messages.append(launch_message(for_the_keeper(command), for_the_child(command)))
    messages += [os.fsencode(word(chance)) + b"\0" for _ in range(300)]
    assert told(parser, messages) == [expected(one) for one in messages]


@pytest.mark.parametrize("seed", range(4))
def test_no_bytes_at_all_are_read_beyond_their_end(parser: Path, seed: int) -> None:
    """Under the sanitizers: what is read beside a message, or lost, ends the program."""
    chance = random.Random(seed)
    task = Task("k", {"a": "b"}, items=3)
    command = Command(
        "a.1", ("true", "x"), "/l", "/e", env_set={"A": "b"}, outputs=("/o",), task=task
    )
    good = launch_message(for_the_keeper(command), for_the_child(command))
    messages = []
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(data))
            what = chance.randrange(4)
            if what == 0:
                data[at] = chance.randrange(256)
            elif what == 1:
                data[at] = chance.choice(b"\0\0000123456789-")
            elif what == 2:
                del data[at:]
                data += b"\0"
            else:
                data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(9)))
        messages.append(bytes(data))
    assert len(told(parser, messages)) == len(messages)


# ── Which are chosen ────────────────────────────────────────────────────────────────────────────


def test_python_keeps_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULAUNCH_KEEPER", "python")
    assert native.choose_keeper() == native.KeeperChoice(None, "asked")
    assert keepers.finding().what.endswith("GPULAUNCH_KEEPER asks for them")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/bin/sh\nexit 64\n", "its test ended with status 64"),
        ("#!/bin/sh\necho no signalfd >&2; exit 70\n", "no signalfd"),
        ("not a program", "Exec format error"),
    ],
)
def test_python_keeps_where_the_program_fails_its_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.delenv("GPULAUNCH_KEEPER", raising=False)
    monkeypatch.setattr(native, "PROGRAM", file_of(tmp_path, script, 0o755))
    choice = native.choose_keeper()
    assert (choice.program, choice.reason) == (None, "unfit")
    assert said in choice.problem
    assert said in keepers.finding().what


def test_python_keeps_where_nothing_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPULAUNCH_KEEPER", raising=False)
    monkeypatch.setattr(native, "PROGRAM", tmp_path / "keeper")
    assert native.choose_keeper() == native.KeeperChoice(None, "absent")
    assert "no C compiler" in keepers.finding().what


def test_the_program_that_was_built_works_and_knows_no_other_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GPULAUNCH_KEEPER", raising=False)
    program = chosen()
    assert native.choose_keeper() == native.KeeperChoice(program, "works")
    assert subprocess.run([program, "--self-test", "999"], check=False).returncode == 64
