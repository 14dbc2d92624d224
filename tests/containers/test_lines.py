"""The image that a client's command line names, where that is certain."""

from __future__ import annotations

import shlex

import pytest

from gpulaunch.containers.lines import image_in

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
