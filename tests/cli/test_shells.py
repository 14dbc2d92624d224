"""Jobs whose script is another shell's than bash's."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.cli.launcher import Launcher

RUN = ("run", "jobs.yaml", "--simulate", "1", "--quiet")
CASES = {
    "zsh": ("a=(x y); echo $a[1] {{v}} '{{v}}'; false; echo not reached", "x it's it's", 1),
    "fish": ("for i in x y; echo -n $i' '; end; echo $V; exit 3", "x y it's", 3),
    "tcsh": ("if (1) echo x $V:q; exit 3", "x it's", 3),
    "dash": ("echo x {{v}}; false; echo not reached", "x it's", 1),
}


def shell_here(name: str) -> str:
    """The shell's name, where it is installed."""
    if not shutil.which(name):
        if os.environ.get("GPULAUNCH_REQUIRE_SHELLS") == "1":
            pytest.fail(f"GPULAUNCH_REQUIRE_SHELLS=1, and there is no {name}")
        pytest.skip(f"no {name} here")
    return name


def with_home(launcher: Launcher) -> Launcher:
    """The launcher with a home of its own: fish makes directories there."""
    home = str(launcher.path / "home")
    launcher.environ |= dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), home)
    return launcher


@pytest.mark.parametrize("name", CASES)
def test_a_job_s_script_may_be_of_any_shell(launcher: Launcher, name: str) -> None:
    shell = shell_here(name)
    script, said, status = CASES[name]
    with_home(launcher)
    launcher.file("script", script)
    text = "".join(f"\n      {line}" for line in script.splitlines())
    (launcher.path / "jobs.yaml").write_text(
        f'jobs:\n  - name: a\n    shell: {shell}\n    matrix: {{v: ["it\'s"]}}\n'
        f'    env: {{V: "{{{{v}}}}"}}\n    run: |{text}\n'
    )
    assert launcher(*RUN).status == 1
    (job,) = launcher.jobs().values()
    assert job["exit_code"] == status
    assert launcher.log(job["name"]).strip() == said


@pytest.mark.parametrize("name", ["fish", "tcsh"])
def test_a_placeholder_in_a_script_that_cannot_be_quoted_is_a_mistake(
    launcher: Launcher, name: str
) -> None:
    launcher.file("jobs.yaml", f"jobs: [{{name: a, shell: {name}, run: 'echo {{{{out}}}}'}}]")
    result = launcher("check", "jobs.yaml", "--simulate", "1")
    assert result.status == 2
    assert f"placeholders cannot be quoted for {name}: write run: as a list" in result.err


def test_a_shell_that_is_not_there_is_a_mistake(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs: [{name: a, shell: there-is-no-such-shell, run: echo}]")
    result = launcher(*RUN)
    assert result.status == 2
    assert "jobs[0].shell: there is no program there-is-no-such-shell in PATH" in result.err
