"""Workers that are any program: a line in, an answer out, everything printed in the item's log."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulaunch.agent.client import PROGRAM
from gpulaunch.core.model import Exited, Signaled, TimedOut
from gpulaunch.engines.client import AttemptOver, Spawner, WorkerReaped
from gpulaunch.engines.command import Task
from tests.process.support import WorkerSlot

LOOP = """
import json, os, sys, time
answers = os.fdopen(3, "w", buffering=1)
print("ready")
for line in sys.stdin:
    item = json.loads(line)
    print(item["what"])
    sys.stdout.flush()
    exec(item["what"])
print("bye")
"""


class Bench(WorkerSlot):
    def __init__(self, spawner: Spawner, folder: Path) -> None:
        super().__init__(spawner, folder)
        (folder / "loop.py").write_text(LOOP)
        self.program = (sys.executable, "loop.py")

    def do(self, what: str = "answers.write('0\\n')", **limits: float) -> AttemptOver:
        argv = (sys.executable, "-I", "-S", PROGRAM, "worker", "lines", *self.program)
        env = {"MARK": self.mark}
        task = Task("k", {"what": what})
        self.launch(*argv, env_set=env, task=task, cwd=str(self.folder), **limits)
        return self.expect(AttemptOver)


@pytest.fixture
def bench(spawner: Spawner, tmp_path: Path) -> Iterator[Bench]:
    with Bench(spawner, tmp_path) as bench:
        yield bench


def test_it_is_started_once_and_each_item_has_its_own_log(bench: Bench) -> None:
    for _ in range(3):
        assert bench.do("print('x' * 100_000, flush=True); answers.write('0\\n')").kept
    assert bench.text(1).startswith("ready\n")
    assert bench.text(3).count("x") == 100_001
    assert len(bench.alive) == 2
    bench.pair.retire()
    bench.expect(WorkerReaped)
    assert bench.alive == []
    assert bench.text(3).endswith("bye\n")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("0", Exited(0)),
        ("3", Exited(3)),
        ("{}", Exited(0)),
        ('{"exit": 4}', Exited(4)),
        ('{"error": "no such chain"}', Exited(1)),
    ],
)
def test_answers(bench: Bench, answer: str, outcome: Exited) -> None:
    ended = bench.do(f"answers.write({answer!r} + chr(10))")
    assert (ended.end.outcome, ended.kept) == (outcome, True)
    assert ("no such chain" in bench.text(1).splitlines()) == ("error" in answer)


@pytest.mark.parametrize(
    "answer", ["hello", "true", "1.5", "256", "-1", "[0]", '{"exit": "0"}', "null", '{"x": 1}']
)
def test_what_is_no_answer_ends_it_and_fails_the_item(bench: Bench, answer: str) -> None:
    ended = bench.do(f"answers.write({answer!r} + chr(10)); answers.flush(); time.sleep(600)")
    assert (ended.end.outcome, ended.kept) == (Exited(1), False)
    assert f"found the answer {answer}; expected" in bench.text(1)
    assert bench.alive == []
    assert bench.do().end.outcome == Exited(0)


def test_answers_too_long_to_be_one_end_it(bench: Bench) -> None:
    assert bench.do("answers.write('0' * 200_000); time.sleep(600)").end.outcome == Exited(1)


def test_with_two_answers_to_one_item_it_is_replaced(bench: Bench) -> None:
    ended = bench.do("os.write(3, b'0\\n0\\n'); time.sleep(600)")
    assert (ended.end.outcome, ended.kept) == (Exited(0), False)
    assert bench.do().end.outcome == Exited(0)
    assert bench.text(2).startswith("ready\n")


@pytest.mark.parametrize(
    ("what", "outcome"),
    [
        ("sys.exit(5)", Exited(5)),
        ("sys.exit(0)", Exited(1)),
        ("os.kill(os.getpid(), 11)", Signaled(signal.SIGSEGV)),
        ("os.kill(os.getpid(), 9)", Signaled(signal.SIGKILL)),
        ("os.kill(os.getppid(), 9)", Signaled(signal.SIGKILL)),
    ],
)
def test_an_end_costs_one_item(bench: Bench, what: str, outcome: object) -> None:
    assert bench.do().kept
    ended = bench.do(what)
    assert (ended.end.outcome, ended.kept) == (outcome, False)
    assert bench.alive == []
    assert bench.do().kept


def test_what_it_says_after_a_term_is_heard(bench: Bench) -> None:
    what = (
        "import signal; signal.signal(15, lambda *_: (print('caught', flush=True), os._exit(3)));"
        "time.sleep(600)"
    )
    assert bench.do().kept  # started: the time is the item's alone
    ended = bench.do(what, timeout=0.5, grace=30.0)
    assert ended.end.outcome == TimedOut("timeout", 0.5, Exited(3))
    assert bench.text(2).endswith("caught\n")


def test_a_program_that_cannot_be_started_says_so_in_the_log(bench: Bench) -> None:
    bench.program = ("/no/such/program",)
    assert bench.do().end.outcome == Exited(127)
    assert bench.text(1) == "cannot start /no/such/program: No such file or directory\n"


def test_one_that_reads_nothing_gets_big_items_all_the_same(bench: Bench) -> None:
    (bench.folder / "loop.py").write_text(
        "import sys, time\nprint('x' * 300_000, flush=True)\nprint(len(sys.stdin.readline()),"
        " flush=True)\nopen(3, 'w').write('0\\n')\ntime.sleep(600)"
    )
    assert bench.do("y" * 300_000).end.outcome == Exited(0)
    assert bench.text(1).splitlines()[-1].startswith("300")


def test_a_shell_loop_is_enough(bench: Bench) -> None:
    (bench.folder / "loop.sh").write_text(
        'while read -r line; do echo "got $line"; echo 0 >&3; done'
    )
    bench.program = ("sh", "loop.sh")
    assert bench.do("one").kept
    assert bench.do("two").kept
    assert bench.text(2) == 'got {"what": "two"}\n'


LAST_WORDS = """
import os
from gpulaunch.agent.worker.lines import Lines
lines = Lines(None, ["sh", "-c", "echo nonsense >&3"])
lines.item = 1
lines.start()
os.waitid(os.P_PID, lines.pid, os.WEXITED | os.WNOWAIT)
lines.last_words(lines.ended())
"""


def test_what_is_no_answer_counts_alike_where_its_program_has_ended() -> None:
    done = subprocess.run([sys.executable, "-c", LAST_WORDS], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout.startswith(b"worker: found the answer nonsense; expected an exit code")
