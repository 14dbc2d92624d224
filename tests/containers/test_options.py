"""Options of engines that gpulaunch keeps for itself, and those that it leaves to people."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from gpulaunch.containers.options import image_in, kept
from gpulaunch.core.model import ContainerEngine

DOCKER: tuple[ContainerEngine, ...] = ("docker", "podman")
APPTAINER: tuple[ContainerEngine, ...] = ("apptainer", "singularity")
KEPT = {
    "--name x": "--name",
    "--name=x": "--name",
    "--rm": "--rm",
    "-d": "--detach",
    "--detach": "--detach",
    "--cidfile f": "--cidfile",
    "--entrypoint bash": "--entrypoint",
    "--gpus all": "--gpus",
    "--gpus=device=0": "--gpus",
    "--device nvidia.com/gpu=all": "--device",
    "--device=nvidia.com/gpu=0": "--device",
    "--device /dev/nvidia0": "--device",
    "--restart=always": "--restart",
    "--init": "--init",
    "-i": "--interactive",
    "-t": "--tty",
    "-it": "--interactive",
    "--tty": "--tty",
    "-u 0": "--user",
    "-u0": "--user",
    "--user=0:0": "--user",
    "--pull always": "--pull",
    "-w /x": "--workdir",
    "--workdir=/x": "--workdir",
    "--privileged": "--privileged",
    "-e CUDA_VISIBLE_DEVICES=1": "--env",
    "-eNVIDIA_VISIBLE_DEVICES=all": "--env",
    "--env=NVIDIA_VISIBLE_DEVICES": "--env",
    "--nv": "--nv",
    "--pid=host": "--pid",
    "--sig-proxy": "--sig-proxy",
    "--sig-proxy=true": "--sig-proxy",
    "--stop-signal KILL": "--stop-signal",
    "--log-driver=journald": "--log-driver",
    "-a stdin": "--attach",
    "-astdin": "--attach",
    "--attach=stdout": "--attach",
    "--replace": "--replace",
    "--rmi": "--rmi",
    "--timeout 60": "--timeout",
    "--label gpulaunch.run=x": "--label",
    "--label=gpulaunch.user": "--label",
    "-l gpulaunch.folder=/x": "--label",
    "-lgpulaunch.attempt=x": "--label",
}
LEFT = [
    "--ipc=host --shm-size 8g",
    "--label a=b -v /a:/b --volume=/c:/d --mount type=bind,src=/a,dst=/b",
    "-e HF_HOME=/x --env A=CUDA_VISIBLE_DEVICES",
    "-v /tiu:/d -p 80:80 -h dit -m 4g",
    "--device /dev/fuse --network host --ulimit memlock=-1",
    "--cap-add SYS_PTRACE",
    "-l a=gpulaunch.run --label-file f --label gpulaunch",
    "--detach-keys ctrl-x --stop-timeout 3 --log-opt tag=x",
]


def found(words: str, engines: Sequence[ContainerEngine]) -> list[str]:
    return [why.partition(": ")[0] for _, why in kept(shlex.split(words), engines)]


@pytest.mark.parametrize("words", KEPT)
def test_an_option_that_gpulaunch_sets_is_found(words: str) -> None:
    assert KEPT[words] in found(words, DOCKER)
    assert KEPT[words] in found(f"--label a {words}", ("docker",))


@pytest.mark.parametrize("words", LEFT)
def test_every_other_option_is_the_persons(words: str) -> None:
    assert found(words, DOCKER) == []


def test_apptainers_letters_mean_other_things() -> None:
    assert found("-C -e -u -w -i -p -W /tmp -B /a:/b --workdir /tmp --no-home", APPTAINER) == []
    assert found("--nv --nvccli --pwd /x --env CUDA_VISIBLE_DEVICES=1", APPTAINER) == [
        *("--nv", "--nvccli", "--pwd", "--env"),
    ]


def test_each_is_told_with_what_to_do_instead() -> None:
    said = dict(kept(["--label", "a", "--user=0", "-w", "/x", "--gpus=all"], DOCKER))
    assert list(said) == [2, 3, 5]
    assert said[2] == "--user: the field user: says whose files those made inside are"
    assert said[3].endswith("write cwd:")
    assert said[5].endswith("gpus: says how many")


# ── the image in a command line ───────────────────────────────────────────────────────────────────

NAMED = {
    "docker run boltz": "boltz",
    "docker run --rm -it boltz bash": "boltz",
    "/usr/bin/docker -H tcp://h container run -dp 80:80 -v/a:/b -w /x boltz": "boltz",
    "docker run --gpus all --shm-size=8g -e A=b -eB=c --init lab/boltz:1 --seed 1": "lab/boltz:1",
    "docker run -v NONE -e A=NONE boltz NONE": "boltz",
    "podman run --device nvidia.com/gpu=all --userns keep-id boltz": "boltz",
    "nvidia-docker run boltz": "boltz",
    "apptainer exec --nv -e -B /a boltz.sif x": "boltz.sif",
    "apptainer -d run --env A=b --pwd /x docker://boltz": "docker://boltz",
    "singularity exec -c /images/x y": "/images/x",
}
UNKNOWN = [
    *("docker exec boltz x", "docker run", "docker run NONE boltz", "docker run -it NONE"),
    *("docker compose up", "docker run -v", "docker run Boltz", "docker ps boltz", ""),
    *("NONE run boltz", "apptainer exec --nv", "apptainer shell boltz.sif"),
]


def words(line: str) -> list[str | None]:
    return [None if "NONE" in word else word for word in shlex.split(line)]


@pytest.mark.parametrize("line", NAMED)
def test_the_image_stands_behind_the_options(line: str) -> None:
    assert image_in(words(line)) == NAMED[line]


@pytest.mark.parametrize("line", UNKNOWN)
def test_what_is_not_certain_is_no_image(line: str) -> None:
    assert image_in(words(line)) == ""
