"""Commands in the strings of other commands: a mask there is found as one outside would be."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.diagnose.lint import python, shell
from tests.lint.helpers import in_shell, report_on, rules

MASK = "CUDA_VISIBLE_DEVICES"
SETS = {
    "sh": f"sh -c '{MASK}=1 python x.py'",
    "bash, bundled flags": f"bash -lc 'cd /x && {MASK}=1 python x.py'",
    "bash, exported inside": f'bash -c "export {MASK}=2; python x.py $f"',
    "bash, its own word": f"bash -c '{MASK}=$0 python x.py' 3",
    "eval": f'eval "{MASK}=1 python x.py"',
    "eval, in words": f"eval {MASK}=1 python x.py",
    "GNU Parallel": f"parallel -j 4 '{MASK}=$(({{%}} - 1)) python x.py {{}}' ::: a b c",
    "GNU Parallel, in words": f"parallel --jobs 2 {MASK}={{1}} python x.py {{2}} ::: 0 1 ::: a b",
    "GNU Parallel behind a pipe": f"ls in | nohup parallel -j2 \"{MASK}='{{%}}' x {{}}\"",
    "xargs": f"ls | xargs -P 4 -I{{}} bash -c '{MASK}=1 python x.py {{}}'",
    "xargs, its slots": f"ls | xargs -P 4 --process-slot-var={MASK} -n 1 python x.py",
    "xargs, a delimiter": f"ls | xargs -d '\\n' -I{{}} sh -c '{MASK}=1 x {{}}'",
    "ssh": f"ssh host '{MASK}=1 python x.py'",
    "nohup": f"nohup bash -c '{MASK}=1 python x.py'",
    "env": f"env {MASK}=1 python x.py",
    "env in front of a shell": f"env A=1 sh -c '{MASK}=1 python x.py'",
    "timeout": f"timeout 2h bash -c '{MASK}=1 python x.py'",
    "watch": f"watch -n 5 '{MASK}=1 python x.py'",
    "flock": f"flock /tmp/l -c '{MASK}=1 python x.py'",
    "find": f"find . -name '*.x' -exec sh -c '{MASK}=1 x {{}}' \\;",
    "conda": f"conda run -n x bash -c '{MASK}=1 python x.py'",
    "apptainer": f"apptainer exec --env {MASK}=1 x.sif python x.py",
    "apptainer by its variable": f"APPTAINERENV_{MASK}=1 apptainer exec x.sif y",
    "podman": f"podman run -e {MASK}=1 image python x.py",
    "mpirun": f"mpirun -x {MASK}=1 python x.py",
    "python": f"python launch.py --cmd '{MASK}=1 python x.py'",
    "a string in a string": f"bash -c \"nohup sh -c '{MASK}=1 python x.py' &\"",
    "a command in a variable": f"CMD='{MASK}=1 python x.py'\neval $CMD",
    "removed": f"bash -c 'unset {MASK}; python x.py'",
}
OUTSIDE = {
    "tmux": f"tmux new-session -d -s a '{MASK}=1 python x.py'",
    "tmux, typed": f"tmux send-keys -t a '{MASK}=1 python x.py' C-m",
    "screen": f"screen -dmS a bash -c '{MASK}=1 python x.py'",
    "srun": f"srun --export=ALL,{MASK}=1 python x.py",
    "docker": f"docker run -e {MASK}=1 image python x.py",
}
QUIET = [
    f"echo '{MASK}=1 python x.py'",
    f"echo '{MASK}=1 python x.py' >> commands.txt",
    f"grep '{MASK}=1' run.sh | wc -l",
    f"git commit -m '{MASK}=0 was wrong'",
    f"bash -c 'echo ${MASK}'",
    f'bash -c "{MASK}=${MASK} python x.py"',
    f"bash -c '{MASK}= python cpu.py'",
    f"python x.py --note '{MASK} is not set'",
    f"apptainer exec --env {MASK}=${MASK} x.sif y",
    f"parallel 'python x.py {{}} --mask ${MASK}' ::: a b",
    "xargs -P 4 --process-slot-var=SLOT python x.py",
    "screen -ls",
    "tmux ls",
]


@pytest.mark.parametrize("name", SETS)
def test_a_mask_in_a_string_is_found(name: str) -> None:
    found = rules(in_shell(SETS[name]))
    assert set(found) == {"own-mask"}, found


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_mask_in_what_runs_elsewhere_is_found_beside_that(name: str) -> None:
    assert set(rules(in_shell(OUTSIDE[name]))) >= {"own-mask", "daemon"}


@pytest.mark.parametrize("script", QUIET)
def test_a_text_that_is_no_command_is_not_found(script: str) -> None:
    assert [found for found in rules(in_shell(script)) if found != "daemon"] == []


def test_a_finding_in_a_string_stands_at_the_string() -> None:
    (found,) = in_shell(f"true\nls | xargs -I{{}} bash -c '{MASK}=1 x'")
    assert (found.line, found.column) == (2, 25)


def test_what_a_shells_string_asks_for_is_judged_like_a_command() -> None:
    assert rules(in_shell("bash -c 'python x.py --device cuda:1'")) == ["device-index"]


def test_a_script_that_a_string_runs_is_looked_at(tmp_path: Path) -> None:
    files = {"go.sh": f"{MASK}=1 python x.py\n"}
    report = report_on(tmp_path, "jobs: [{name: a, run: \"sh -c './go.sh; bash go.sh'\"}]", files)
    assert [found.path.rpartition("/")[2] for found in report.findings] == ["go.sh"]


def test_check_points_at_the_string_in_the_job_file(tmp_path: Path) -> None:
    jobs = f"jobs:\n  - name: a\n    run: ls | parallel '{MASK}=1 x {{}}'\n"
    (found,) = report_on(tmp_path, jobs).findings
    assert (found.line, found.rule) == (3, "own-mask")


@pytest.mark.parametrize("list_of", [["bash", "-c", f"{MASK}=1 x"], ["parallel", f"{MASK}=1 x"]])
def test_a_list_that_no_shell_reads_is_looked_at_as_well(
    tmp_path: Path, list_of: list[str]
) -> None:
    report = report_on(tmp_path, f"jobs: [{{name: a, run: {list_of}}}]")
    assert rules(list(report.findings)) == ["own-mask"]


def test_strings_in_strings_are_soon_done_with() -> None:
    deep = f"{MASK}=1 x"
    for _ in range(30):
        deep = "bash -c " + "'" + deep.replace("'", "'\\''") + "'"
        if len(deep) > 100_000:
            break
    many = "parallel '" + f"{MASK}=1 x; " * 20_000 + "' ::: a"
    assert len(shell.look(deep, "bash", python.suspects_in).found) <= shell.MAX_SUSPECTS
    assert len(shell.look(many, "bash", python.suspects_in).found) <= shell.MAX_SUSPECTS


@pytest.mark.parametrize("command", ["sbatch --gres=gpu:1 x.sh", "srun --gres gpu:a100:2 python x"])
def test_how_many_cards_slurm_is_asked_for_is_no_card_s_number(command: str) -> None:
    assert rules(in_shell(command)) == ["daemon"]
