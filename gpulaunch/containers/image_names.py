"""How images are named: by people, by each engine's command line, and as files. Pure text.

docker://NAME, podman://NAME, NAME   an image of a registry
library://, oras://, shub://         of registries that apptainer alone knows
docker-daemon:NAME:TAG               one that docker has here; apptainer alone takes it from there
/PATH                                a file, or a directory that apptainer takes for an image
"""

from __future__ import annotations

import hashlib
import re

_OF_DAEMONS = ("docker://", "podman://")
_FROM_DOCKER = "docker-daemon:"
_LOADED = re.compile(r"^Loaded image(?:\(s\))?(?: ID)?: (.+)$", re.MULTILINE)
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH = 60


def is_file(image: str) -> bool:
    """Tell whether a file or directory is named: a job file's are absolute by now."""
    return image.startswith("/")


def is_from_docker(image: str) -> bool:
    """Tell whether docker's daemon, and no registry, has the image for another engine."""
    return image.startswith(_FROM_DOCKER)


def bare(image: str) -> str:
    """Return the name as docker and podman take it: without `docker://`."""
    for prefix in _OF_DAEMONS:
        if image.startswith(prefix):
            return image[len(prefix) :]
    return image


def pulled_as(engine: str, image: str) -> str:
    """Return the name as docker's or podman's `pull` takes it.

    podman keeps `docker://`, which tells it the registry of a name without a host: without that it
    knows only those that its administrator listed.
    """
    return image if engine == "podman" and image.startswith("docker://") else bare(image)


def host(image: str) -> str:
    """Return the registry's host that the name begins with, port included; or "".

    The rule is docker's: a first part with a dot or a colon, or `localhost`, is a host.
    """
    if is_from_docker(image):
        return ""
    first, slash, _ = image.rpartition("://")[2].partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else ""


def apptainer_uri(image: str) -> str:
    """Return the address that `apptainer pull` takes; a name alone is one of `docker://`."""
    return image if "://" in image or is_from_docker(image) else f"docker://{image}"


def file_name(uri: str) -> str:
    """Return the name of an image's file among those that were pulled: one for each address."""
    last = uri.rpartition("/")[2].partition("@")[0]
    readable = _ODD.sub("-", last)[:_NAME_LENGTH].strip(".-") or "image"
    digest = hashlib.sha256(uri.encode()).hexdigest()[:16]
    return f"{readable}-{digest}.sif"


def loaded(output: str) -> list[str]:
    """Return the names or ids that `docker load` or `podman load` printed, each once."""
    names = [name.strip() for line in _LOADED.findall(output) for name in line.split(",")]
    return list(dict.fromkeys(filter(None, names)))


def digest_among(repo_digests: list[str], image: str) -> str:
    """Return the `sha256:...` by which the image's own registry knows it, or ""."""
    by_name = dict(entry.partition("@")[::2] for entry in reversed(repo_digests))
    repository = re.sub(r"(:[^:/]*)?(@.*)?$", "", image)
    own = [name for name in by_name if name == repository or name.endswith(f"/{repository}")]
    return next((by_name[name] for name in [*own, *reversed(by_name)]), "")
