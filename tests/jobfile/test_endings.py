"""What a script's status leaves out is found where it is certain, and nowhere else."""

from __future__ import annotations

import pytest

from gpulaunch.jobfile.endings import hidden, left_running
from tests.jobfile.helpers import jobs_of, mistakes_of

LEFT = {
    "python a &": "python",
    "nohup python a > x 2>&1 &  # later": "python",
    "(python a &)": "python",
    "{ python a & }": "python",
    "python a & disown": "python",
    "python a &\necho started": "python",
    "python a > log &\necho $! > pid; exit 0\n": "python",
    "for i in 1 2; do python $i & done": "python",
    "a & wait; python b &": "python",
    "if true; then\n  python a &\nfi\n": "python",
    "case x in a) python b & ;; esac": "python",
    "setsid python a": "python",
    "cd x && setsid -f python a": "python",
    "nohup setsid python a": "python",
    "exec setsid python a > log": "python",
    "timeout 9 python b; setsid --fork python a > log": "python",
}
"""Scripts that end while a command still runs, and which."""
NOT_LEFT = [
    "a & b & wait",
    "a & b & wait -n",
    "server & pid=$!; python a; kill $pid",
    "for i in 1 2; do python $i & done; wait",
    "for i in 1 2; do python $i & done\nfor p in $(jobs -p); do wait $p; done",
    "number=$(python a & echo $!)",
    "python b < <(python a &)",
    "tail -f log & python a",
    "python a & tail --pid=$! -f /dev/null",
    "python a & while kill -0 $!; do sleep 1; done",
    "trap wait EXIT; python a &",
    "setsid --wait python a",
    "setsid -w python a",
    "python setsid",
    "timeout 9 setsid python a",
    "yes | setsid python a",
    "(setsid python a)",
    "setsid python a > log 2>&1",
    "python a & x=`python b`",
    "python a & echo `wait $!`",
    "echo a &> log",
    "echo a \\&",
    "echo 'a &'",
    "a && b",
    "cat <<$X\n a &\n",
]
HIDDEN = {
    "a & b & wait": ("wait", "wait"),
    "for i in 1 2; do python $i & done\nwait\necho done": ("wait", "wait"),
    "python a || true": ("python", "python"),
    "python a || echo failed": ("python", "python"),
    "python a && echo ok || echo failed": ("python", "python"),
    "while read x; do python $x || echo no; done < list": ("python", "python"),
    "python a; echo done": ("python", ""),
    "set +e; python a; echo done": ("python", "python"),
    "python a\nexit 0": ("python", ""),
    "python a\ndate\nexit": ("python", ""),
    "python a | tee log": ("python", ""),
    "python a 2>&1 | tee log\necho done": ("python", ""),
}
"""What hides a failure: without errexit and pipefail, and with both."""
NOT_HIDDEN = [
    "wait",
    "a & wait $!",
    "a & b & wait -n; wait -n",
    "server & python a; kill $!; wait",
    "rm x & wait",
    "python a || exit 1",
    "python a || { echo failed; exit 1; }",
    "python a || (echo failed; exit 3)",
    "python a || python b",
    "python a && echo ok",
    "python a; rm tmp || true",
    "python a; curl -d done host || true",
    "python a\nrsync log there || echo kept here",
    "if python a; then echo ok; else echo no; fi",
    "set -e; python a; echo done",
    "set -euo pipefail\npython a | tee log\necho done",
    "python a; exit",
    "python a; exit $?",
    "python a\nstatus=$?\necho done\nexit $status",
    'python a | tee log\nexit "${PIPESTATUS[0]}"',
    "trap 'rm x' EXIT; python a | tee log",
    "python a | python b",
    "echo a | tee log",
    "for i in 1 2; do python $i; done",
]


@pytest.mark.parametrize("script", LEFT)
def test_a_command_that_outlives_its_script_is_found(script: str) -> None:
    found = left_running(script, "bash")
    assert found is not None
    assert found.word.text == LEFT[script]


@pytest.mark.parametrize("script", NOT_LEFT)
def test_a_script_that_may_wait_for_its_commands_is_not_doubted(script: str) -> None:
    assert left_running(script, "bash") is None


def test_a_shell_of_which_it_is_not_known_whether_it_becomes_setsid_is_not_doubted() -> None:
    assert left_running("setsid python a", "zsh") is not None
    assert left_running("setsid python a", "dash") is None
    assert left_running("setsid -f python a", "dash") is not None


@pytest.mark.parametrize("script", HIDDEN)
def test_a_failure_that_a_script_hides_is_found(script: str) -> None:
    for options, word in zip((False, True), HIDDEN[script], strict=True):
        found = [one.word.text for one in hidden(script, "bash", options, options)]
        assert found == [word] * bool(word)


@pytest.mark.parametrize("script", NOT_HIDDEN)
def test_a_failure_that_shows_or_is_no_jobs_work_is_not_doubted(script: str) -> None:
    assert list(hidden(script, "bash", False, False)) == []


def test_a_job_whose_work_goes_on_in_the_background_is_refused_at_its_place() -> None:
    wrong = mistakes_of("jobs:\n- {name: a, run: python x &}\n- run: [setsid, python, x]\n")
    background, apart = wrong
    assert background.startswith("2:18: jobs[0].run: the last command runs in the background (&)")
    assert "jobs run side by side" in background
    assert apart.startswith("3:8: jobs[1].run: setsid does not wait for the command")
    assert len(jobs_of("jobs: [{run: a & b & wait}, {run: [setsid, --wait, a]}]")) == 2


def test_a_script_for_another_program_than_a_shell_is_not_read_as_one() -> None:
    jobs = jobs_of("""
jobs:
- {shell: python3, run: "m = a &true"}
- {shell: perl, run: "&set;"}
- {shell: "{{s}}", matrix: {s: [perl]}, run: "start &"}
- {run: [timeout, "9", setsid, python, a]}
""")
    assert len(jobs) == 4
