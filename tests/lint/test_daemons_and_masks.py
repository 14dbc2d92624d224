"""Commands that ask a daemon or set the mask, and above all those that only look like it."""

from __future__ import annotations

import pytest

from gpulaunch.diagnose.lint import Finding
from tests.lint.helpers import in_shell

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
QUIET = [
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


@pytest.mark.parametrize("script", QUIET)
def test_everything_else_is_not(script: str) -> None:
    assert _found(script) == []


@pytest.mark.parametrize("script", MASKS)
def test_a_mask_of_its_own_is_warned_of(script: str) -> None:
    (found,) = _found(script)
    assert found.rule == "own-mask"
