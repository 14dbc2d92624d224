"""A journal that a disk, or a person, has damaged: what it costs, and what is said of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import pytest

from gpulaunch.core.facts import Noted
from gpulaunch.journal.codec import encode, now
from tests.cli.launcher import Launcher
from tests.journal.test_read import sealed

JOBS = """
    jobs:
      - {name: a, run: echo a >> ran, gpus: 0}
      - {name: b, run: '[ -e mended ] && echo b >> ran', gpus: 0}
      - {name: c, run: echo c >> ran, gpus: 0, needs: [a]}
"""
VIEWS = [
    ["status"],
    ["status", "--json"],
    ["logs"],
    ["logs", "-f", "a"],
    ["report"],
    ["wait"],
]


@pytest.fixture
def ended(launcher: Launcher) -> Launcher:
    """A run of three jobs, of which one failed."""
    launcher.file("jobs.yaml", JOBS)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    return launcher


def lines_of(launcher: Launcher) -> list[bytes]:
    return (launcher.run / "events.jsonl").read_bytes().splitlines(keepends=True)


def put(launcher: Launcher, lines: Iterable[bytes]) -> None:
    (launcher.run / "events.jsonl").write_bytes(b"".join(lines))


def number_of(launcher: Launcher, kind: str, job: str) -> int:
    (line,) = [e for e in launcher.events(kind) if job in (e.get("job"), e.get("name"))]
    return int(line["n"])


def flip(launcher: Launcher, *numbers: int) -> None:
    lines = lines_of(launcher)
    for number in numbers:
        lines[number - 1] = b"?" + lines[number - 1][1:]
    put(launcher, lines)


def ran(launcher: Launcher) -> list[str]:
    return sorted((launcher.path / "ran").read_text().splitlines())


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_one_flipped_byte_costs_its_line_and_no_view(ended: Launcher, view: list[str]) -> None:
    number = number_of(ended, "attempt_started", "a")
    flip(ended, number)
    result = ended(*view)
    assert result.status == (1 if view == ["wait"] else 0), result.err
    assert result.err.count(f"line {number} (byte ") == 1
    assert "does not match its checksum" in result.err
    assert "Traceback" not in result.err


def test_a_success_whose_end_is_lost_stays_one(ended: Launcher) -> None:
    flip(ended, number_of(ended, "attempt_ended", "a"), number_of(ended, "attempt_launched", "a"))
    assert ended.states() == {"a": "succeeded", "b": "failed", "c": "succeeded"}
    ended.file("mended", "")
    result = ended("resume")
    assert result.status == 0, result.err
    assert "2 done, 1 again" in result.err
    assert ran(ended) == ["a", "b", "c"]
    assert set(ended.states().values()) == {"succeeded"}


@pytest.mark.parametrize("kind", ["attempt_ended", "job_settled"])
def test_a_success_of_which_one_end_is_left_is_not_run_again(ended: Launcher, kind: str) -> None:
    flip(ended, number_of(ended, kind, "a"))
    ended("resume")
    assert ran(ended) == ["a", "c"]
    assert ended.states()["a"] == "succeeded"


def test_a_job_of_which_no_end_is_left_runs_again_and_that_is_said(ended: Launcher) -> None:
    flip(ended, number_of(ended, "attempt_ended", "a"), number_of(ended, "job_settled", "a"))
    assert ended.jobs()["a"]["state"] == "waiting"
    ended.file("mended", "")
    result = ended("resume")
    assert result.status == 0, result.err
    assert "resume runs again what has no recorded end" in result.err
    assert "again because no end of theirs can be read, be it a success: a\n" in result.err
    assert ran(ended) == ["a", "a", "b", "c"]
    assert [attempt["state"] for attempt in ended.jobs()["a"]["attempts"]] == ["lost", "succeeded"]


@pytest.mark.parametrize("kept", [True, False], ids=["its keeper's record", "nothing"])
def test_a_success_whose_lines_are_lost_is_settled_by_what_its_keeper_wrote(
    ended: Launcher, kept: bool
) -> None:
    launched = number_of(ended, "attempt_launched", "a")
    after = encode(launched + 3, Noted("after"), now())
    put(ended, [*lines_of(ended)[:launched], b"not a line\n" * 2, after])
    if kept:
        keep_end(ended, "a.1")
    ended.file("mended", "")
    result = ended("resume")
    assert result.status == 0, result.err
    (said,) = [line for line in result.err.splitlines() if "be it a success" in line]
    assert ("a" in said.rpartition(": ")[2].split(", ")) == (not kept)
    assert ran(ended).count("a") == (1 if kept else 2)
    assert set(ended.states().values()) == {"succeeded"}


def keep_end(launcher: Launcher, attempt: str) -> None:
    """A keeper's record of a success, as where the supervisor was killed before it read that."""
    at = [now().utc, now().mono]
    record = {"attempt": attempt, "pid": 1, "status": 0, "started": at, "ended": at}
    record |= {"cause": None, "error": None, "missing": [], "leftovers": 0}
    line = json.dumps(record).encode()
    (launcher.run / "ends").mkdir(exist_ok=True)
    (launcher.run / "ends" / attempt).write_bytes(b"%08x %s\n" % (crc32(line), line))


def test_an_attempt_of_which_nothing_but_its_log_is_left_keeps_it(ended: Launcher) -> None:
    kinds = ("attempt_launched", "attempt_started", "attempt_ended", "job_settled")
    flip(ended, *(number_of(ended, kind, "b") for kind in kinds))
    before = ended.log("b")
    ended.file("mended", "")
    assert ended("resume").status == 0
    assert ended.log("b") == before
    assert [attempt["number"] for attempt in ended.jobs()["b"]["attempts"]] == [1, 2]
    assert ended.jobs()["b"]["attempts"][1]["log"].endswith("b.2.log")


def test_the_first_line_may_be_lost(ended: Launcher) -> None:
    flip(ended, 1)
    found = ended.status()
    assert found["run"]["state"] == "failed"
    assert found["run"]["simulated"]
    ended.file("mended", "")
    assert ended("resume").status == 0
    assert ran(ended) == ["a", "b", "c"]


def test_the_last_line_may_be_lost(ended: Launcher) -> None:
    lines = lines_of(ended)
    flip(ended, len(lines))
    result = ended("status")
    assert f"line {len(lines)} (byte" in result.err
    assert "interrupted" in result.out
    ended.file("mended", "")
    assert ended("resume").status == 0
    assert ran(ended) == ["a", "b", "c"]


def test_a_last_line_that_is_cut_off_is_said(ended: Launcher) -> None:
    lines = lines_of(ended)
    put(ended, [*lines[:-1], lines[-1][:-20]])
    result = ended("status")
    assert result.status == 0
    assert f"line {len(lines)} (byte" in result.err
    assert "it is cut off" in result.err


def test_a_journal_in_ruins_is_still_shown(ended: Launcher) -> None:
    lines = lines_of(ended)
    flip(ended, *range(1, len(lines), 2))
    result = ended("status")
    assert result.status == 0
    assert "more such places" in result.err
    assert len(result.err.splitlines()) <= 5


@pytest.mark.parametrize("seed", range(4))
def test_a_journal_damaged_anywhere_is_shown_and_gone_on_with(ended: Launcher, seed: int) -> None:
    count = len(lines_of(ended))
    chance = random.Random(seed)
    lost = chance.sample(range(1, count + 1), chance.choice([1, 2, count // 3, count - 2]))
    about = {e["n"]: e.get("job", e.get("name")) for e in ended.events()}
    flip(ended, *lost)
    for view in VIEWS[:-1]:
        result = ended(*view)
        assert result.status in (0, 2), (view, result.err)
        assert "Traceback" not in result.err
    ended.file("mended", "")
    result = ended("resume")
    assert result.status == 0, result.err
    assert set(ended.states().values()) == {"succeeded"}
    counts = Counter(ran(ended))
    assert counts.keys() == {"a", "b", "c"}, "no job is lost"
    for name in {"a", "c"} - {about[number] for number in lost}:
        assert counts[name] == 1, "what is done is not run again"


def test_what_a_newer_version_wrote_is_shown_as_far_as_it_is_known(ended: Launcher) -> None:
    lines = lines_of(ended)
    new = {"n": len(lines) + 1, "t": "2026-11-20T07:42:15.123456Z", "m": 1.0, "e": "card_sang"}
    put(ended, [*lines, sealed(new), encode(len(lines) + 2, Noted("after"), now())])
    result = ended("status")
    assert result.status == 0
    assert "holds the fact 'card_sang'" in result.err
    refused = ended("resume")
    assert refused.status == 2
    assert "use that version, or a newer one" in refused.err
    assert Path(ended.run / "events.jsonl").read_bytes().count(b"\n") == len(lines) + 2
