"""Mistakes on the command line and in job files: what is said, where, and as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.launcher import COMMAND, Launcher

UNPRIVILEGED = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
"""Before a command: root without the rights that files do not give it."""


def test_a_command_or_two_files_where_run_takes_one_file_are_told_what_to_do(
    launcher: Launcher,
) -> None:
    for argv in (["python", "train.py"], ["a.yaml", "b.yaml"]):
        result = launcher("run", *argv)
        assert result.status == 2
        assert f"run takes one job file, and {' '.join(argv)} is more" in result.err
        assert "one command: gpulaunch exec -- CMD" in result.err


WRONG = """
jobs:
  - {name: a, run: 'true', gpus: x}
  - {name: b, run: 'true', needs: [nobody]}
"""
READ = ["check", "run", "run --dry-run"]


@pytest.mark.parametrize("command", READ)
def test_json_of_a_wrong_file_is_its_mistakes_and_nothing_else(
    launcher: Launcher, command: str
) -> None:
    launcher.file("jobs.yaml", WRONG)
    result = launcher(*command.split(), "jobs.yaml", "--json")
    assert result.status == 2
    told = json.loads(result.out)
    assert (told["status"], told["error"]) == (2, "2 mistakes in the job file")
    assert [(m["file"], m["line"], m["field"]) for m in told["mistakes"]] == [
        ("jobs.yaml", 3, "jobs[0].gpus"),
        ("jobs.yaml", 4, "jobs[1].needs[0]"),
    ]
    assert told["mistakes"][1]["message"] == "there is no job nobody"
    assert "jobs.yaml:4:" in result.err


@pytest.mark.parametrize(
    "text",
    ["jobs: [", "", "\x00", "- a", "jobs: [{run: x}]\njobs: []", "jobs: &a [*a]", "\udcff"],
    ids=["open", "empty", "nul", "list", "twice", "cycle", "latin"],
)
def test_json_of_what_is_no_job_file_has_its_mistake(launcher: Launcher, text: str) -> None:
    (launcher.path / "jobs.yaml").write_bytes(text.encode(errors="surrogateescape"))
    result = launcher("check", "jobs.yaml", "--json")
    assert result.status == 2
    (mistake,) = json.loads(result.out)["mistakes"]
    assert mistake["file"] == "jobs.yaml"
    assert mistake["message"]
    assert "jobs.yaml" not in mistake["message"]


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        ("check absent.yaml --json", 2),
        ("check --json", 2),
        ("check jobs.yaml --json --bogus", 2),
        ("check jobs.yaml --json --gpus 7", 2),
        ("run jobs.yaml --simulate x --json", 2),
        ("run jobs.yaml --json --simulate 1 --new --continue", 2),
        ("map --json --simulate 1 true ::: no/*.fasta", 2),
        ("resume absent --json", 2),
        ("retry absent --json", 2),
        ("status absent --json", 2),
        ("ps --json absent", 2),
        ("gpus --json absent", 2),
        ("doctor --json absent", 2),
    ],
)
def test_json_of_a_failure_is_one_line_with_its_words(
    launcher: Launcher, argv: str, status: int
) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'true'}]")
    result = launcher(*argv.split())
    if result.status == 3:  # cards that are not here are no mistake of the command line
        status = 3
    assert result.status == status, result.err
    told = json.loads(result.out)
    assert told["status"] == status
    assert told["error"]
    assert told["mistakes"] == []


def test_a_command_of_a_job_may_have_json_of_its_own(launcher: Launcher) -> None:
    result = launcher("map", "--gpus", "x", "echo", "--json", ":::", "a")
    assert result.status == 2
    assert not result.out


# ── map ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        ("wc {}", "{{path}}"),
        ("wc {.}.txt", "{{dir}}/{{stem}}"),
        ("wc {/}", "{{name}}"),
        ("wc {/.}", "{{stem}}"),
        ("wc {//}", "{{dir}}"),
        ("wc --in={1}", "{{path}}"),
        ("wc {#}", "{{index}}"),
    ],
)
def test_replacement_strings_of_gnu_parallel_are_told_ours(
    launcher: Launcher, command: str, ours: str
) -> None:
    for words in ([command], command.split()):
        result = launcher("map", "--simulate", "1", *words, ":::", "a")
        assert result.status == 2
        assert f"is GNU Parallel's; here it is {ours}" in result.err
        assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["echo", "{}", "{{item}}"],
        ["echo ${1} a{1} '${#}' {}x{{item}}"],
        ["echo", "{1,2}", "{a}", "\\{}"],
    ],
)
def test_braces_that_are_not_gnu_parallels_stay(launcher: Launcher, words: list[str]) -> None:
    result = launcher("map", "--simulate", "1", "--dry-run", *words, ":::", "a")
    assert result.status == 0, result.err


def test_an_item_that_looks_like_a_glob_can_be_itself(launcher: Launcher) -> None:
    result = launcher("map", "--simulate", "1", "echo", ":::", "[0,10]")
    assert result.status == 2
    assert "[0,10] matches no file; map --literal takes items as they stand" in result.err
    launcher.file("a.txt", "")
    result = launcher("map", "--simulate", "1", "--literal", "echo", ":::", "[0,10]", "*.txt")
    assert result.status == 0, result.err
    logs = (launcher.run / "logs").iterdir()
    assert {path.read_text() for path in logs} == {"[0,10]\n", "*.txt\n"}


# ── what a job leaves, whom a run tells ──────────────────────────────────────────────────────────


def test_an_output_is_told_as_absent_empty_or_old(launcher: Launcher) -> None:
    old: Path = launcher.file("old.txt", "x")
    old.touch()
    launcher.file(
        "jobs.yaml",
        """
        jobs:
          - {name: a, run: ': > empty.txt', outputs: [none.txt, empty.txt, old.txt]}
        """,
    )
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    reason = launcher.jobs()["a"]["reason"]
    assert "none.txt (absent)" in reason
    assert "empty.txt (empty)" in reason
    assert "old.txt (older than the attempt)" in reason


@pytest.mark.parametrize("run", ["[no-such-teller]", "no-such-teller --quick", "A=1 ./tell.sh"])
def test_a_command_to_tell_that_is_not_there_is_said(launcher: Launcher, run: str) -> None:
    text = f"notify: [{{run: {run}}}]\njobs: [{{name: a, run: 'true'}}]\n"
    launcher.file("jobs.yaml", text)
    for command in ("check", "run"):
        result = launcher(command, "jobs.yaml", "--simulate", "1")
        assert result.status == 0, result.err
        assert "jobs.yaml:1:" in result.err
        assert "there is no program" in result.err


@pytest.mark.parametrize(
    "run",
    ["'cat > last.json'", "'echo x'", "'f() { cat; }; f'", "'$TELL now'", "'cd / && no-such x'"],
)
def test_a_command_to_tell_that_may_be_there_is_not_warned_of(launcher: Launcher, run: str) -> None:
    text = f"notify: [{{run: {run}}}]\njobs: [{{name: a, run: 'true'}}]\n"
    launcher.file("jobs.yaml", text)
    result = launcher("check", "jobs.yaml", "--simulate", "1")
    assert result.status == 0
    assert "there is no program" not in result.err


# ── what is not there ───────────────────────────────────────────────────────────────────────────

ABSENT = """
gpus: [7]
notify: [{to: "nonsense://x"}]
jobs:
  - {name: a, run: python predikt.py}
  - {name: b, run: 'true', needs: [nobody]}
  - {name: c, worker: "fold.py:predikt"}
  - {name: d, run: 'true', cwd: nowhere}
"""


@pytest.mark.parametrize("command", READ)
def test_what_is_not_there_is_told_with_all_else_before_anything_starts(
    launcher: Launcher, command: str
) -> None:
    launcher.file("predict.py", "")
    launcher.file("fold.py", "def predict(item): ...")
    launcher.file("jobs.yaml", ABSENT)
    result = launcher(*command.split(), "jobs.yaml", "--simulate", "1")
    assert result.status == 2
    for told in (
        "jobs[0].run: ",
        "predikt.py does not exist; did you mean predict.py?",
        "jobs[1].needs[0]: there is no job nobody",
        "jobs[2].worker: there is no predikt in fold.py; did you mean predict?",
        "jobs[3].cwd: ",
    ):
        assert told in result.err
    assert not (launcher.path / "gpulaunch-runs").exists()


def test_what_the_cards_and_the_addresses_say_is_told_together(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", ABSENT.partition("  - {name: a")[0] + "  - {name: a, run: 'true'}\n")
    for command in ("check", "run"):
        result = launcher(command, "jobs.yaml", "--simulate", "1")
        assert result.status == 2
        assert "jobs.yaml:2:8: gpus[0]:" in result.err or "jobs.yaml:2:7: gpus:" in result.err
        assert "jobs.yaml:3:" in result.err


def test_resume_looks_only_at_what_it_would_start(launcher: Launcher) -> None:
    launcher.file("ok.py", "")
    launcher.file("bad.py", "raise SystemExit(1)")
    jobs = "jobs: [{name: a, run: python3 ok.py}, {name: b, run: python3 bad.py}]"
    launcher.file("jobs.yaml", jobs)
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    (launcher.path / "ok.py").unlink()
    launcher.file("bad.py", "")
    assert launcher("resume").status == 0
    (launcher.path / "bad.py").unlink()
    assert launcher("run", "--new", "jobs.yaml", "--simulate", "1").status == 2


def test_retry_refuses_to_start_what_is_gone(launcher: Launcher) -> None:
    launcher.file("bad.py", "raise SystemExit(1)")
    launcher.file("jobs.yaml", "jobs: [{name: b, run: python3 bad.py}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    (launcher.path / "bad.py").unlink()
    result = launcher("retry")
    assert result.status == 2
    assert "bad.py does not exist" in result.err


def test_map_says_what_is_wrong_without_a_job_file_that_nobody_wrote(launcher: Launcher) -> None:
    result = launcher("map", "--simulate", "1", "no-such-program", "x", ":::", "a", "b")
    assert result.status == 2
    assert result.err == "gpulaunch: CMD: there is no program no-such-program in PATH\n"
    result = launcher("map", "--simulate", "1", "--timeout", "soon", "true", ":::", "a")
    assert result.status == 2
    assert result.err.startswith("gpulaunch: --timeout: expected a duration")


def test_a_run_that_may_be_read_and_not_written_is_told_of_in_a_line(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, run: 'exit 3'}]")
    assert launcher("run", "jobs.yaml", "--simulate", "1").status == 1
    run = launcher.run
    colleague = Launcher(launcher.path, command=[*UNPRIVILEGED, *COMMAND])
    os.chmod(run, 0o500)
    try:
        for command in ("retry", "resume"):
            told = colleague(command)
            assert told.status == 4, told.err
            assert told.err.splitlines()[-1] == (
                "gpulaunch: the run could not be recorded"
                f" ({run}/jobs.2.yaml: Permission denied); no job was started"
            )
            assert "Traceback" not in told.err
    finally:
        os.chmod(run, 0o700)
    assert launcher("retry").status == 1
