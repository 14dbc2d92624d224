"""The container's first process, told what no carrier says. Without containers."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpulaunch.agent.wire import counted, packed, send_bytes, send_fields
from tests.containers.carried import Bench
from tests.containers.daemons import PATIENCE
from tests.process.messages import spoilt

FUZZ = int(os.environ.get("GPULAUNCH_TEST_FUZZ", "4000")) // 40
SEED = int(os.environ.get("GPULAUNCH_TEST_SEED", "0"))
REFUSAL = re.compile(r"keeper \d+: (the carrier.s message|.* descriptors.*): ")


@contextmanager
def connected(bench: Bench, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A first process that waits for its carrier's word."""
    path = bench.engine.folder / "link"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(str(path))
        door.listen()
        with log.open("wb") as file:
            inside = subprocess.Popen([bench.keeper, "inside", path], stderr=file)
        link, _ = door.accept()
    with link:
        yield inside, link
    inside.wait(PATIENCE)


def run_message(*argv: str, fds: tuple[str, ...] = ()) -> bytes:
    lists = (*counted(["A=b"]), *counted(["HOME"]), *counted(["A"]), *counted([]))
    return packed("run", *counted(argv), "/", *lists, "0", "100", *counted(fds))


def test_it_says_how_the_program_ended(bare_bench: Bench, tmp_path: Path) -> None:
    with connected(bare_bench, tmp_path / "log") as (inside, link):
        send_fields(link, run_message("sh", "-c", "exit 3"))
        said = json.loads(link.recv(4096))
        known = {"is": "ended", "status": 3 << 8, "leftovers": 0, "oom_kills": 0, "refused": None}
        assert said == known
        assert inside.wait(PATIENCE) == 0


def test_it_exits_where_nobody_listens(bare_bench: Bench) -> None:
    program = [bare_bench.keeper, "inside", bare_bench.engine.folder / "nobody"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert done.stderr.endswith("nobody: No such file or directory\n")


@pytest.mark.parametrize(
    "words", [b"", b"signal\0", b"signal\x0099\0", b"signal\x000\0", b"x" * 99]
)
def test_what_is_no_signal_ends_it(bare_bench: Bench, tmp_path: Path, words: bytes) -> None:
    with connected(bare_bench, tmp_path / "log") as (inside, link):
        send_fields(link, run_message("sleep", "999"))
        if words:
            link.send(words)
        else:
            link.shutdown(socket.SHUT_WR)
        assert inside.wait(PATIENCE) == 0


def test_spoilt_words_do_it_no_harm(bare_bench: Bench, tmp_path: Path) -> None:
    """Under the sanitizers, where asked for: what is read beside a message ends it otherwise."""
    chance = random.Random(SEED)
    null = os.open(os.devnull, os.O_RDWR)
    for _ in range(FUZZ):
        message = run_message("true", "a", fds=("0", "100"))
        with connected(bare_bench, tmp_path / "log") as (inside, link):
            send_bytes(link, spoilt(message, chance), [null] * chance.choice([0, 2, 2, 2]), 0)
            if chance.random() < 0.5:
                with suppress(BrokenPipeError):  # it refused the first
                    link.send(spoilt(packed("signal", "15"), chance) or b"x")
        said = (tmp_path / "log").read_text(errors="replace")
        assert inside.returncode in (0, 70), said
        assert not said or REFUSAL.match(said), said
    os.close(null)
