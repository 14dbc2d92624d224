"""Which commands a preload server can fork, found as exec and the shell would, and why not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpulaunch.engines.local.preloads import PLAIN_SHELL, Cold, Forkable, forkable

PYTHON = os.path.realpath(sys.executable)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(PYTHON)
    (tmp_path / "a.py").write_text("")
    program(tmp_path, "tool", f"#!{PYTHON}\n")
    program(tmp_path, "sh-tool", "#!/bin/sh\n")
    program(tmp_path, "isolated", f"#!{PYTHON} -sE\n")
    return tmp_path


def program(here: Path, name: str, text: str) -> None:
    path = here / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def found(here: Path, *argv: str, shell: bool = False, **env: str) -> Forkable:
    whole = (*PLAIN_SHELL, *argv) if shell else argv
    return forkable(whole, str(here), {"PATH": f"{here}/bin:/usr/bin:/bin", **env}, shell)


def cold(here: Path, *argv: str, shell: bool = False, **env: str) -> str:
    with pytest.raises(Cold) as error:
        found(here, *argv, shell=shell, **env)
    return str(error.value)


def test_a_script_with_its_options_and_arguments(here: Path) -> None:
    got = found(here, "python", "-OW", "error", "-u", "a.py", "-x", "1")
    assert got.python == f"{here}/bin/python"
    assert got.start == ("python", "-OW", "error", "-u")
    assert got.target == ("a.py",)
    assert got.main.args == ("-x", "1")
    assert got.main.argv == ("python", "-OW", "error", "-u", "a.py", "-x", "1")
    assert got.main.name == "python"


def test_a_module_and_a_console_script(here: Path) -> None:
    assert found(here, "python", "-m", "a.b", "-m").target == ("-m", "a.b")
    got = found(here, "tool", "fold", "-x")
    assert (got.python, got.start) == (PYTHON, (PYTHON,))
    assert got.target == (f"{here}/bin/tool",)
    assert got.main.argv == (PYTHON, f"{here}/bin/tool", "fold", "-x")
    assert got.main.name == "tool"


def test_the_runs_own_shim_leads_to_the_interpreter_that_was_named(here: Path) -> None:
    program(here, "python3", f'#!/bin/sh\nexec "{PYTHON}" "$@"\n')
    got = found(here, "python3", "a.py")
    assert (got.python, got.start) == (PYTHON, (PYTHON,))


def test_a_string_that_is_one_simple_command(here: Path) -> None:
    got = found(here, "A=1 B='x y' python a.py \"p q\" r\\ s 't'u", shell=True, SHLVL="2", PWD="/x")
    assert got.main.args == ("p q", "r s", "tu")
    assert got.main.env == {
        "A": "1", "B": "x y", "PWD": os.path.realpath(here), "SHLVL": "2", "_": f"{here}/bin/python"
    }  # fmt: skip
    assert "_" not in found(here, "exec python a.py", shell=True).main.env
    assert found(here, 'python a.py "a\\"b"', shell=True).main.args == ('a"b',)


@pytest.mark.parametrize(
    "script",
    [
        "python a.py | cat", "python a.py; x", "python a.py > x", "python a.py $X", "python a.py *",
        "python a.py ~/x", "python a.py {a,b}", "python a.py `x`", "python a.py \"$X\"",
        "cd x && python a.py", "python a.py &", "python a.py # x", "(python a.py)", "! python a.py",
        "python a.py\npython a.py", "python a.py x[1]", "python a.py 'x", "python a.py \\\n x",
    ],
)  # fmt: skip
def test_what_a_shell_has_to_run_starts_cold(here: Path, script: str) -> None:
    assert cold(here, script, shell=True).startswith("a shell has to run it")


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["python", "-c", "1"], "there is no script"),
        (["python", "-"], "there is no script"),
        (["python"], "there is no script"),
        (["python", "-m"], "-m names no module"),
        (["python", "b.py"], "there is no script b.py"),
        (["python", "-I", "a.py"], "-I"),
        (["python", "-uE", "a.py"], "-E"),
        (["python", "-i", "a.py"], "-i"),
        (["python", "-X", "importtime", "a.py"], "-X importtime"),
        (["python", "--check-hash-based-pycs", "never", "a.py"], "--check-hash-based-pycs"),
        (["isolated"], "-E"),
        (["sh-tool"], "no interpreter of Python"),
        (["no-such"], "no-such is not found"),
        (["cat", "a.py"], "cat is no program of Python"),
        (["bin"], "bin is not found"),
    ],
)
def test_what_no_server_can_be_made_for_says_why(here: Path, argv: list[str], why: str) -> None:
    assert why in cold(here, *argv)


def test_a_python_that_is_a_script_asks_for_the_interpreters_name(here: Path) -> None:
    program(here, "python3.99", "#!/usr/bin/env bash\n")
    assert "name one with python:" in cold(here, "python3.99", "a.py")


def test_an_environment_that_changes_what_the_interpreter_prints_starts_cold(here: Path) -> None:
    assert cold(here, "python", "a.py", PYTHONPROFILEIMPORTTIME="1").endswith("is set")
    assert "functions" in cold(here, "python a.py", shell=True, **{"BASH_FUNC_python%%": "() {}"})
