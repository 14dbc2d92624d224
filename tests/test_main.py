"""The last door: what no command expected is one line, a status, and a traceback in a file."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import gpulaunch.cli
from gpulaunch import __main__ as door
from gpulaunch.base.errors import EXEC_OWN_FAILURE, OWN_FAULT
from tests.cli.launcher import COMMAND


class SpeechlessError(Exception):
    """An error that fails again while it is worded, as those of some libraries do."""

    def __str__(self) -> str:
        raise KeyError("words")


def endless(n: int = 0) -> int:
    return endless(n + 1)


def too_deep() -> RecursionError:
    try:
        endless()
    except RecursionError as error:
        return error
    raise AssertionError


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("a\nb\x1b[31m"), "KeyError: 'a\\nb\\x1b[31m'; please report it"),
        (SpeechlessError(), "a fault of gpulaunch: SpeechlessError; please report it"),
        (too_deep(), "a fault of gpulaunch: RecursionError: maximum recursion depth"),
        (MemoryError(), "out of memory: see `ulimit -v`"),
        (OSError(24, "Too many open files", "/tmp/x"), "/tmp/x: Too many open files"),
        (OSError(2, "No such file", "/proc/net/unix"), "No such file: gpulaunch needs /proc"),
    ],
)
def test_whatever_it_is_it_is_one_line_with_the_file_of_its_traceback(
    error: Exception, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert door.report(error, ["status"]) == OWN_FAULT
    told = capfd.readouterr().err
    assert words in told
    assert (told.count("\n"), "\x1b" in told) == (1, False)
    found = re.search(r"\(traceback: (.*?)\)", told)
    assert found is not None
    assert type(error).__name__ in Path(found[1]).read_text()


def test_it_says_what_becomes_of_a_run_and_keeps_the_statuses_of_exec(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert door.report(ValueError("x"), ["run", "a.yaml"]) == OWN_FAULT
    assert "`gpulaunch resume` goes on with it" in capfd.readouterr().err
    assert door.report(ValueError("x"), ["exec", "--", "true"]) == EXEC_OWN_FAILURE
    assert "resume" not in capfd.readouterr().err


def test_with_json_it_is_a_document_as_well(capfd: pytest.CaptureFixture[str]) -> None:
    door.report(ValueError("x"), ["ps", "--json"])
    told = json.loads(capfd.readouterr().out)
    assert (told["status"], told["mistakes"]) == (OWN_FAULT, [])
    assert "ValueError: x" in told["error"]
    door.report(ValueError("x"), ["map", "--", "prog", "--json"])
    assert capfd.readouterr().out == ""


def test_without_a_place_for_the_traceback_the_line_is_there_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(error: Exception) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(door, "written", full)
    assert door.report(ValueError("x"), ["ps"]) == OWN_FAULT
    assert (
        capfd.readouterr().err
        == "gpulaunch: a fault of gpulaunch: ValueError: x; please report it\n"
    )


def test_the_command_line_goes_through_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken() -> int:
        raise LookupError("never expected")

    monkeypatch.setattr(gpulaunch.cli, "main", broken)
    monkeypatch.setattr(sys, "argv", ["gpulaunch", "ps"])
    assert door.main() == OWN_FAULT
    assert "LookupError: never expected" in capfd.readouterr().err


def test_under_a_tight_limit_of_memory_a_small_job_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("jobs: [{name: a, run: x}]\n")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (120 << 20, 120 << 20))

    done = subprocess.run(
        [*COMMAND, "check", "jobs.yaml", "--simulate", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=limited,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_a_name_that_the_locale_cannot_spell_is_run_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("jobs: [{name: \"b\u00e9-\u65e5\", run: 'echo $PYTHONUTF8'}]\n", "utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environ = os.environ | ascii_only
    for words in (("run", file, "--simulate", "1", "--run-dir", "r"), ("status", "r")):
        ran = subprocess.run(
            [*COMMAND, *words], check=False, cwd=tmp_path, env=environ, capture_output=True
        )
        assert (ran.returncode, b"fault" in ran.stderr) == (0, False), ran.stderr
    (log,) = (tmp_path / "r" / "logs").iterdir()
    assert (log.name, log.read_text()) == ("b\u00e9-\u65e5.1.log", "0\n")
