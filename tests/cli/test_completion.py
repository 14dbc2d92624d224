"""What a shell is answered when it completes a command line, and what comes of it at a TAB."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from gpulaunch.cli import COMMANDS, cli, completion
from gpulaunch.journal import read as glance
from gpulaunch.journal.read import states_of
from gpulaunch.journal.rundir import RunDir
from tests.cli.launcher import COMMAND, Launcher
from tests.cli.terminal import Terminal, terminal
from tests.cli.test_shells import shell_here, with_home
from tests.helpers import wait_until
from tests.test_house import HEAVY

PATIENT = {"PYTHONPATH": f"{Path(__file__).parent / 'patient'}:{os.getcwd()}"}
ODD = "odd:'na!me\" [1] $x *~ü"
JOBS = f"""
    defaults: {{gpus: 0}}
    jobs:
      - {{name: "fold {{{{i}}}}", matrix: {{i: [1, 2, 3]}}, run: "test {{{{i}}}} = 2"}}
      - {{name: {json.dumps(ODD)}, run: "true"}}
"""


@pytest.fixture
def listed(launcher: Launcher) -> Launcher:
    """gpulaunch where two runs are over: of `fold 1` to 3 the odd ones failed."""
    launcher.file("jobs.yaml", JOBS)
    launcher.file("other.txt", "")
    launcher.file("folder/inner.yml", "")
    for _ in range(2):
        assert launcher("run", "jobs.yaml", "--simulate", "1", "--quiet", "--new").status == 1
    return launcher


def asked(
    launcher: Launcher, shell: str, words: list[str], current: str
) -> subprocess.CompletedProcess[bytes]:
    """What a shell is answered; whatever happens, no word of an error and status 0."""
    told = {"_GPULAUNCH_COMPLETE": f"{shell}_complete", "COMP_CWORD": str(len(words))}
    told["COMP_WORDS"] = ("\n" if shell == "bash" else " ").join([*words, current])
    if shell == "fish":
        told["COMP_CWORD"] = current
    done = subprocess.run(
        COMMAND,
        cwd=launcher.path,
        env=launcher.environ | told | PATIENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.stderr, done.returncode) == (b"", 0)
    return done


def zsh(line: str) -> dict[str, str]:
    """What zsh's function asks with, once this was typed behind `gpulaunch `."""
    before = f"gpulaunch {line}".split(" ")
    told = {"_GPULAUNCH_COMPLETE": "zsh_complete", "COMP_CWORD": str(len(before) - 1)}
    return told | {"COMP_WORDS": f"gpulaunch {line}"}


def items(launcher: Launcher, *words: str) -> list[tuple[str, str, str]]:
    """Kind, value and text of each item that zsh is answered."""
    *before, current = map(shlex.quote, words)
    told = asked(launcher, "zsh", ["gpulaunch", *before], current if words[-1] else "")
    lines = iter(told.stdout.decode().strip().splitlines())
    triples = zip(lines, lines, lines, strict=True)
    return [(kind, value.replace("\\:", ":"), text) for kind, value, text in triples]


def found(launcher: Launcher, *words: str) -> list[str]:
    """The values that are completed; the kind of what the shell is to look for itself."""
    return [v if kind == "plain" else kind for kind, v, _ in items(launcher, *words)]


def test_commands_options_and_choices_are_completed(launcher: Launcher) -> None:
    assert found(launcher, "") == list(COMMANDS)
    assert found(launcher, "re") == ["resume", "retry", "reload", "report", "results"]
    assert found(launcher, "queue", "st") == ["start", "status", "stop"]
    assert "--fail-fast" in found(launcher, "run", "jobs.yaml", "--f")
    assert found(launcher, "run", "jobs.yaml", "--engine", "") == ["local", "slurm"]
    assert found(launcher, "completion", "") == ["bash", "zsh", "fish"]
    assert ("plain", "wait", COMMANDS["wait"][1]) in items(launcher, "wa")
    assert found(launcher, "run", "jobs.yaml", "--engine=s") == ["--engine=slurm"]
    assert asked(launcher, "fish", ["gpulaunch"], "wa").stdout.startswith(b"plain,wait\t")


def test_bash_is_answered_as_it_breaks_and_quotes_words(listed: Launcher) -> None:
    def told(*words: str) -> list[str]:
        *before, current = words
        lines = asked(listed, "bash", ["gpulaunch", *before], current).stdout.decode().splitlines()
        return [line.replace("\\\\", "\\") for line in lines]

    assert told("run", "--engine", "=", "sl") == ["plain,slurm"]
    assert told("run", "--engine", "=") == ["plain,local", "plain,slurm"]
    assert told("run", "--engine", "=", "slurm", "jo") == ["plain,jobs.yaml"]
    assert told("logs", "fold\\ 2") == ["plain,fold\\ 2"]
    assert told("logs", "'fold 2") == ["plain,fold 2"]
    assert told("logs", "od") == ["plain,odd:\\'na\\!me\\\"\\ \\[1\\]\\ \\$x\\ \\*\\~ü"]
    assert told("logs", '"od') == ["plain,odd:'na\"'!'\"me\\\" [1] \\$x *~ü"]


def test_runs_are_completed_newest_first_and_jobs_with_their_states(listed: Launcher) -> None:
    names = sorted((path.name for path in listed.run.parent.glob("jobs-*")), reverse=True)
    assert len(names) == 2
    for command in ("resume", "reload", "finish", "wait", "top", "report"):
        assert found(listed, command, "jobs-") == names
        assert found(listed, command, "-r", "") == names
    assert found(listed, "status", "") == [*(f"fold {i}" for i in (1, 2, 3)), ODD, *names]
    assert found(listed, "retry", "fold") == ["fold 1", "fold 3"]
    assert found(listed, "logs", "-r", names[1], "fold 1", "fold") == ["fold 2", "fold 3"]
    assert found(listed, "cancel", "") == []
    assert found(listed, "add", "--needs", "fold 2") == ["fold 2"]
    assert found(listed, "run", "jobs.yaml", "--only", "fold 2") == ["fold 2"]
    assert ("plain", "fold 1", "failed") in items(listed, "status", "fold")


def test_job_files_stand_before_other_files(listed: Launcher) -> None:
    assert found(listed, "run", "") == ["jobs.yaml", "other.txt"]
    assert found(listed, "check", "folder/") == ["folder/inner.yml"]
    assert items(listed, "run", "fol") == [("file", "fol", "_")], "the shell's own files"
    assert found(listed, "run", "jobs.yaml", "--run-dir", "x") == ["dir"]
    assert "python3" in found(listed, "exec", "--", "pyth")
    assert found(listed, "exec", "--", "python", "x") == ["file"]
    assert found(listed, "status", "./") == ["file"]


def test_fields_and_classes_are_completed_where_an_option_takes_them(listed: Launcher) -> None:
    assert found(listed, "run", "--default", "gpu_m") == ["gpu_memory="]
    assert found(listed, "each", "--on", "exit,gpu_l") == ["exit,gpu_library", "exit,gpu_lost"]


def test_fields_are_completed_for_schema_and_set(listed: Launcher) -> None:
    assert found(listed, "schema", "retr") == ["retries"]
    assert found(listed, "schema", "--config", "li") == ["limits"]
    listed.file("gpulaunch-runs/waits/manifest.json", (listed.run / "manifest.json").read_text())
    events = (listed.run / "events.jsonl").read_text().splitlines()
    begun = [line for line in events if '"run_opened"' in line or '"job_added"' in line]
    listed.file("gpulaunch-runs/waits/events.jsonl", "".join(f"{line}\n" for line in begun))
    assert found(listed, "set", "-r", "waits", "fold") == ["fold 1", "fold 2", "fold 3"]
    assert found(listed, "set", "-r", "waits", "fold 1", "p") == ["priority="]


def test_cards_are_those_of_the_driver_s_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, uuid in enumerate(("GPU-aa", "GPU-bb")):
        file = tmp_path / f"0000:0{number}:00.0" / "information"
        file.parent.mkdir()
        file.write_text(
            f"Model: \t\t NVIDIA A100\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n"
        )
    monkeypatch.setattr(completion, "CARDS", tmp_path)

    def told(name: str, typed: str) -> list[str]:
        command = cli.get_command(click.Context(cli), "exec")
        assert command is not None
        (parameter,) = (one for one in command.params if one.name == name)
        return [one.value for one in parameter.shell_complete(click.Context(command), typed)]

    assert told("gpus", "") == ["all", "1", "2", "GPU-aa", "GPU-bb"]
    assert told("gpus", "GPU-bb,") == ["GPU-bb,GPU-aa"]
    assert told("card", "NV") == ["NVIDIA A100"]
    monkeypatch.setattr(completion, "CARDS", tmp_path / "none")
    assert told("gpus", "") == ["all"]


def parameters(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from parameters(inner, f"{path} {name}".strip())
    for parameter in command.params:
        yield path, parameter


FREE = frozenset(
    {
        *("name", "cards", "count", "lines", "attempt", "env", "uses", "slurm", "only", "output"),
        *("gpu_memory", "memory", "compute", "cpus", "priority", "retries", "per_gpu", "simulate"),
        *("seconds", "wait", "timeout", "grace", "gpu_idle", "not_before", "between", "settle"),
        *("free_below", "max_failures", "breaker", "metrics_port", "gpus", "delay", "older"),
        *("files", "sort", "first", "keep", "turn"),
    }
)
"""Parameters that take a number, a time or a name of one's own, in some command at least."""


def test_every_parameter_is_completed_or_takes_what_nobody_can_know() -> None:
    for path, parameter in parameters(cli, ""):
        name = parameter.name or ""
        known = isinstance(parameter.type, click.Choice | click.Path)
        flag = isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count)
        placed = parameter._custom_shell_complete is not None
        assert known or flag or placed or name in FREE, f"{path} {name}"


# ── Nothing goes wrong ──────────────────────────────────────────────────────────────────────────


def test_what_cannot_be_read_or_found_is_no_answer(listed: Launcher, tmp_path: Path) -> None:
    assert found(listed, "logs", "-r", "there-is-none", "") == []
    assert found(listed, "there-is-no-command", "") == []
    assert found(listed, "run", "--there-is-no-option", "") != ["error"]
    (listed.run / "events.jsonl").write_bytes(b'\0{"e":"job_added","job":"a\\u000ab"}\n\xff')
    assert found(listed, "logs", "") == []
    for path in listed.run.parent.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    assert found(listed, "logs", "") == []
    gone = Launcher(tmp_path / "gone", listed.environ)
    gone.path.mkdir()
    script = f'rmdir "$PWD"; exec {sys.executable} -m gpulaunch'
    environ = listed.environ | zsh("status ") | PATIENT
    done = subprocess.run(
        ["bash", "-c", script], cwd=gone.path, env=environ, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_run_that_may_not_be_read_is_named_all_the_same(
    listed: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(run: RunDir) -> dict[str, str]:
        raise PermissionError(run.events)

    monkeypatch.chdir(listed.path)
    monkeypatch.setattr(glance, "states_of", refused)
    context = click.Context(click.Command("status"))
    told = completion.jobs_or_runs()(context, click.Argument(["what"]), "jobs-")
    assert listed.run.name in [one.value for one in told]


HANGING = """
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>
void hang(void) {
    if (vfork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
}
"""


def test_a_disk_that_does_not_answer_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Who waits for a vfork waits as for a disk that is gone: only a signal that kills ends it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to hang with")
    library = tmp_path / "hanging.so"
    build = [compiler, "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    subprocess.run(build, input=HANGING, text=True, check=True)
    script = f"""if True:
        import ctypes, sys
        from gpulaunch.cli import completion, main
        hang = ctypes.CDLL({str(library)!r}).hang
        completion._runs_here = lambda: hang()
        sys.exit(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | zsh("status -r "),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGALRM, b"", b"")


@pytest.mark.parametrize("line", ["", "status ", "run a.yaml --gpus "])
def test_nothing_heavy_is_imported_for_an_answer(listed: Launcher, line: str) -> None:
    script = f"""if True:
        import sys
        from gpulaunch.cli import main
        main()
        print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
    """
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=listed.path,
        env=listed.environ | zsh(line) | PATIENT,
        capture_output=True,
        check=False,
    )
    assert done.stdout
    assert done.stderr == b"[]\n"


def test_an_older_click_answers_too(listed: Launcher) -> None:
    """Before 8.4, none of its classes is generic."""
    script = """if True:
        import sys, click
        from click.shell_completion import CompletionItem
        for one in (click.ParamType, CompletionItem):
            one.__class_getitem__ = None
        from gpulaunch.cli import main
        sys.exit(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=listed.path,
        env=listed.environ | zsh("status fold") | PATIENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.stdout.count("\nfold ")) == ("", 3)


def test_it_writes_nothing_and_leaves_nothing(listed: Launcher) -> None:
    def seen() -> dict[str, float]:
        return {str(path): path.stat().st_mtime for path in listed.path.rglob("*")}

    before = seen()
    for words in (["status"], ["run", "jobs.yaml", "--gpus"], ["exec", "--"]):
        asked(listed, "fish", ["gpulaunch", *words], "")
    assert seen() == before


def test_ten_thousand_jobs_are_read_off_the_journal_as_the_run_knows_them(
    listed: Launcher,
) -> None:
    run = RunDir(listed.run)
    assert states_of(run) == listed.states()
    lines = (listed.run / "events.jsonl").read_text().splitlines()
    added = next(line for line in lines if '"job":"fold 1"' in line)
    with open(listed.run / "events.jsonl", "a") as file:
        file.writelines(added.replace("fold 1", f"n{i}") + "\n" for i in range(10_000))
    assert len(states_of(run)) == 10_004
    assert found(listed, "status", "n9999") == ["n9999"]
    assert found(listed, "status", "n") == [f"n{i}" for i in range(10)]
    assert len(found(listed, "status", "n9")) == 1111


# ── At a TAB ────────────────────────────────────────────────────────────────────────────────────

INTERACTIVE = {
    "bash": ["bash", "--noprofile", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "-N", "-i"],
}
PREPARED = {
    "bash": "PS1='READY''> '; bind 'set enable-bracketed-paste off';"
    " source <(gpulaunch completion bash)",
    "zsh": "PS1='READY''> '; autoload -Uz compinit;"
    " compinit -D -u; source <(gpulaunch completion zsh)",
    "fish": "gpulaunch completion fish | source; function fish_prompt; echo 'READY''> '; end",
}
ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " os.execvp(sys.argv[1], sys.argv[1:])"
)


PROGRAM = f"""#!/bin/sh
# The command itself for completions; else what it was called with is kept.
if [ "$_GPULAUNCH_COMPLETE" ] || [ "$1" = completion ]; then
    [ ! -e hangs ] || kill -ALRM $$
    exec {sys.executable} -m gpulaunch "$@"
fi
printf '<%s>' "$@" >called.new
mv called.new called
"""


@contextmanager
def at_prompt(listed: Launcher, shell: str) -> Iterator[Terminal]:
    """An interactive shell that has read the script, with `gpulaunch` as a command."""
    shell_here(shell)
    program = listed.file("bin/gpulaunch", PROGRAM)
    program.chmod(0o755)
    listed.environ |= {"PATH": f"{program.parent}:{os.environ['PATH']}"} | PATIENT
    with_home(listed)
    command = [sys.executable, "-c", ON_TERMINAL, *INTERACTIVE[shell]]
    inside = Launcher(listed.path, listed.environ, command)
    with terminal(inside, columns=150, TERM="xterm", LC_ALL="C.UTF-8") as screen:
        screen.press(PREPARED[shell] + "\n")
        screen.wait_for("READY> ")
        yield screen


def called(listed: Launcher, screen: Terminal, keys: str) -> str:
    """What the command is called with, once these keys and Enter were pressed."""
    path = listed.path / "called"
    path.unlink(missing_ok=True)
    screen.press(keys + "\n")
    wait_until(lambda: screen.raw is not None and path.exists(), 60, screen.text)
    return path.read_text()


TYPED = {
    "sch\t": "<schema>",
    "run jo\t--fail-f\t": "<run><jobs.yaml><--fail-fast>",
    "run --engine=sl\t": "<run><--engine=slurm>",
    "check folder/in\t": "<check><folder/inner.yml>",
    "check fol\tinn\t": "<check><folder/inner.yml>",
    "logs fold\\ 2\t-f": "<logs><fold 2><-f>",
    "schema retri\t": "<schema><retries>",
    "exec -- setsi\t-c": "<exec><--><setsid><-c>",
    "init oth\t": "<init><other.txt>",
    "logs od\t": f"<logs><{ODD}>",
    "logs 'od\t": f"<logs><{ODD}>",
    'logs "od\t': f"<logs><{ODD}>",
}
"""Keys, and what the command is called with."""


@pytest.mark.parametrize("shell", INTERACTIVE)
def test_a_press_of_tab_completes_and_the_shell_hands_on_what_was_meant(
    listed: Launcher, shell: str
) -> None:
    with at_prompt(listed, shell) as screen:
        for keys, expected in TYPED.items():
            assert called(listed, screen, f"gpulaunch {keys}") == expected, keys


@pytest.mark.parametrize("shell", INTERACTIVE)
def test_no_error_is_ever_printed_into_the_prompt(listed: Launcher, shell: str) -> None:
    (listed.run / "events.jsonl").write_bytes(b"{")
    with at_prompt(listed, shell) as screen:
        assert called(listed, screen, "gpulaunch logs -r nowhere x\t") == "<logs><-r><nowhere><x>"
        listed.file("hangs", "")
        assert called(listed, screen, "gpulaunch logs x\t-f") == "<logs><x-f>"
        for word in ("Error", "Traceback", "Alarm"):
            assert word not in screen.text
