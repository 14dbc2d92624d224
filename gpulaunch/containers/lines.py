"""Finds the image in a command line of an engine's client: `docker run [OPTION ...] IMAGE ...`.

For people who have such a line, and are told what to write instead. Nothing is run from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpulaunch.containers.images import read_image
from gpulaunch.containers.options import SWITCHES

DAEMONS = frozenset({"docker", "nerdctl", "nvidia-docker", "docker-compose"})
"""Programs that have a daemon start their containers."""
OWN = frozenset({"apptainer", "singularity"})
"""Programs whose containers are descendants of theirs, with the caller's own variables."""

# fmt: off
_LONG_SWITCHES = frozenset({
    "--detach", "--interactive", "--tty", "--rm", "--init", "--privileged", "--read-only",
    "--no-healthcheck", "--oom-kill-disable", "--publish-all", "--sig-proxy", "--quiet",
    "--replace", "--no-hosts", "--no-hostname", "--tls-verify", "--disable-content-trust", "--rmi",
})
"""docker's and podman's long options that take no value; all others do."""
_VALUED = frozenset({
    "--bind", "-B", "--mount", "--env", "--env-file", "--home", "-H", "--pwd", "--cwd", "--workdir",
    "-W", "--scratch", "-S", "--overlay", "-o", "--app", "--hostname", "--dns", "--security",
    "--add-caps", "--drop-caps", "--apply-cgroups", "--network", "--network-args", "--memory",
    "--cpus", "--no-mount", "--fusemount", "--pem-path", "--docker-username", "--docker-password",
})
"""apptainer's options that take a value; no others do."""
# fmt: on
_VERBS = frozenset({"run", "exec"})


def image_in(words: Sequence[str | None]) -> str:
    """Return the image that a command line names; empty if it names none that is certain.

    `words`: program first, None for what is known only once it runs.
    """
    program = (words[0] or "").rpartition("/")[2] if words else ""
    at = next((at for at, word in enumerate(words[1:8], 1) if word in _VERBS), 0)
    if not (program and at) or (words[at] == "exec" and program not in OWN):
        return ""  # `docker exec` names a container
    valued = takes_value if program in OWN else _valued_of_docker
    word = _first_operand(words[at + 1 :], valued) or ""
    try:
        read_image(word)
    except ValueError:
        return ""
    return word


def _first_operand(words: Sequence[str | None], valued: Callable[[str], bool]) -> str | None:
    """Return the first word that is neither an option nor its value; None if that is unknown."""
    at = 0
    while at < len(words):
        word = words[at]
        if word is None or not word.startswith("-"):
            return word
        at += 2 if valued(word) else 1
    return None


def takes_value(option: str | None) -> bool:
    """Tell whether an option of apptainer's has its value in the next word."""
    return option in _VALUED


def _valued_of_docker(option: str) -> bool:
    """Tell whether the next word is the option's value."""
    if option.startswith("--"):
        return "=" not in option and option not in _LONG_SWITCHES
    for place, letter in enumerate(option[1:], 2):
        if letter not in SWITCHES:
            return place == len(option)
    return False
