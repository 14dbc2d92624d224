"""Shell in jobs: commands in strings, daemons, masks, and above all what only looks like them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.diagnose.lint import Finding, shell
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
    assert len(shell.look(deep, "bash").found) <= shell.MAX_SUSPECTS
    assert len(shell.look(many, "bash").found) <= shell.MAX_SUSPECTS


@pytest.mark.parametrize("command", ["sbatch --gres=gpu:1 x.sh", "srun --gres gpu:a100:2 python x"])
def test_how_many_cards_slurm_is_asked_for_is_no_card_s_number(command: str) -> None:
    assert rules(in_shell(command)) == ["daemon"]


# ── daemons and masks ─────────────────────────────────────────────────────────────────────────────

DAEMONS = {
    "docker run --rm x": "docker run",
    "echo a; docker -H tcp://h run x": "docker run",
    "/usr/bin/docker exec c x": "docker exec",
    "docker compose -f x.yml up": "docker up",
    "docker-compose up -d": "docker-compose up",
    "sudo -n docker start c": "docker start",
    "nerdctl run x": "nerdctl run",
    "A=1 B=2 sbatch job.sh": "sbatch",
    "cd x && srun python a.py": "srun",
    "if true; then qsub x; fi": "qsub",
    "out=$(sbatch --parsable x)": "sbatch",
    'echo "$(sbatch x)"': "sbatch",
    "(docker run x)": "docker run",
    "f() { docker run x; }; f": "docker run",
    "case a in\n a|b) docker run x;;\nesac": "docker run",
    "case a in a) docker run x;; esac": "docker run",
    "nohup setsid docker run x >log 2>&1 &": "docker run",
    "timeout 5m docker run x": "docker run",
    "cat l | xargs -n1 -I {} docker run {}": "docker run",
    "echo it\\'s; docker \\\n  run x": "docker run",
    "docker run -e A='x y' {{path}}": "docker run",
    "cat <<E\nhi\nE\ndocker run x": "docker run",
    "systemd-run --user x": "systemd-run",
    "echo x | at now": "at",
    "true &>log; docker run x": "docker run",
}
HARMLESS = [
    "docker ps",
    "docker pull x && docker inspect run",
    "docker compose logs",
    "echo docker run x",
    "echo $(date) docker run x",
    "# docker run x",
    "echo a # ; docker run x",
    "echo 'x; docker run x'",
    'echo "; docker run x"',
    "cat <<E\ndocker run x\nE",
    "cat <<'E'\nsbatch x\nE\n",
    "./docker-run.sh",
    "python docker.py run",
    "sbatch=1",
    "case $x in sbatch) echo hi;; at) echo at;; esac",
    "for x in docker sbatch; do echo $x; done",
    "echo x >docker run",
    "podman run x",
    "apptainer exec --nv x.sif y",
    "nohup python x.py &",
    "setsid x",
    "systemd-run --scope --user x",
    "at",
    "look at this",
    "echo $docker run; $(cat docker) run",
    "[ -x docker ] && echo {docker,run}",
    "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
    "CUDA_VISIBLE_DEVICES= python x",
    'CUDA_VISIBLE_DEVICES="" python x',
    "CUDA_VISIBLE_DEVICES=-1 python x",
    "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*} python x",
    "export CUDA_VISIBLE_DEVICES=$GPULAUNCH_GPU_INDEX",
    "CUDA_VISIBLE_DEVICES={{gpu_index}} python x",
    "export CUDA_VISIBLE_DEVICES",
    "echo CUDA_VISIBLE_DEVICES=1",
    "echo $CUDA_VISIBLE_DEVICES",
]
MASKS = [
    "CUDA_VISIBLE_DEVICES=1 python x",
    "A=1 CUDA_VISIBLE_DEVICES='0,1' python x",
    "export A=1 CUDA_VISIBLE_DEVICES=0",
    "CUDA_VISIBLE_DEVICES=$GPU python x",
    "env -i CUDA_VISIBLE_DEVICES=0 python x",
    "CUDA_VISIBLE_DEVICES={{gpu}} python x",
    "unset CUDA_VISIBLE_DEVICES",
    "if true; then CUDA_VISIBLE_DEVICES=1; fi",
]


def _found(script: str) -> list[Finding]:
    return [one for one in in_shell(script) if one.rule in ("daemon", "own-mask")]


@pytest.mark.parametrize("script", DAEMONS)
def test_what_a_daemon_starts_is_warned_of(script: str) -> None:
    (found,) = _found(script)
    assert found.rule == "daemon"
    assert found.why.startswith(f"{DAEMONS[script]} has ")


@pytest.mark.parametrize("script", HARMLESS)
def test_everything_else_is_not(script: str) -> None:
    assert _found(script) == []


@pytest.mark.parametrize("script", MASKS)
def test_a_mask_of_its_own_is_warned_of(script: str) -> None:
    (found,) = _found(script)
    assert found.rule == "own-mask"
