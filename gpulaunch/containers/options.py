"""Options of the engines' clients: those that gpulaunch sets itself, and where the image stands.

Another value of theirs would break a promise: the job's own cards, its end with the job, its output
in the job's log. What each engine's other options mean is its own business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpulaunch.containers.engines import LABELS
from gpulaunch.containers.images import read_image
from gpulaunch.core.model import ContainerEngine

_CARDS = "gpulaunch gives the container the job's own cards; gpus: says how many"
_OWN_CARDS = f"it would name cards that may be another job's: {_CARDS}"
_WATCHED = "gpulaunch names and watches the container, to end it with its job; leave it out"
_NO_TERMINAL = "a job has no terminal, its output goes into its log; leave it out"
_DIRECTORY = "the container's directory is the job's; write cwd:"
_COMMAND = "the container runs the job's command; write run:"
_LOGGED = "a job's output goes into its log, whatever the engine logs; leave it out"
_ENDED = "gpulaunch passes a job's signals on itself, SIGTERM first at its end; leave it out"
_AGAIN = "it would start again after its job's end; write retries:"

_ANYWHERE: Mapping[str, str] = {
    "--gpus": _CARDS,
    "--nv": _CARDS,
    "--nvccli": _CARDS,
    "--rocm": _CARDS,
    "--pwd": _DIRECTORY,
    "--cwd": _DIRECTORY,
}
_OF_DAEMONS: Mapping[str, str] = {
    "--name": _WATCHED,
    "--rm": _WATCHED,
    "--cidfile": _WATCHED,
    "--detach": _WATCHED,
    "--replace": _WATCHED,
    "--attach": _NO_TERMINAL,
    "--log-driver": _LOGGED,
    "--sig-proxy": _ENDED,
    "--stop-signal": _ENDED,
    "--timeout": "the field timeout: says how long the job may run",
    "--rmi": "it would take the image away from the jobs after this one; leave it out",
    "--entrypoint": _COMMAND,
    "--restart": _AGAIN,
    "--init": "gpulaunch's own first process is there, and reaps the others; leave it out",
    "--interactive": _NO_TERMINAL,
    "--tty": _NO_TERMINAL,
    "--user": "the field user: says whose files those made inside are",
    "--pull": "the field pull: says when the image is pulled",
    "--workdir": _DIRECTORY,
    "--privileged": f"it would show the container every card of the machine: {_CARDS}",
}
"""docker's and podman's."""
_LONG: Mapping[str, str] = {
    "a": "--attach",
    "d": "--detach",
    "e": "--env",
    "i": "--interactive",
    "l": "--label",
    "t": "--tty",
    "u": "--user",
    "w": "--workdir",
}
SWITCHES = "ditPq"
"""docker's and podman's options of one letter that take no value, and may stand together: -it."""
_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
_CARD = re.compile(r"(?:nvidia\.com/|/dev/nvidia).*", re.DOTALL)


def kept(args: Sequence[str], engines: Sequence[ContainerEngine]) -> Iterator[tuple[int, str]]:
    """Yield (number, reason) for each option that gpulaunch keeps for itself.

    `engines`: those that may run the container. The same letter says another thing to each of them,
    so that docker's and podman's are looked for only where one of these may be it.
    """
    daemons = not {"docker", "podman"}.isdisjoint(engines)
    known = {**_ANYWHERE, **(_OF_DAEMONS if daemons else {})}
    for number, word in enumerate(args):
        following = args[number + 1] if number + 1 < len(args) else ""
        for option, value in _options(word, following, daemons):
            if why := known.get(option) or _of_value(option, value):
                yield number, f"{option}: {why}"


def _options(word: str, following: str, daemons: bool) -> Iterator[tuple[str, str]]:
    """Yield (long name, value) of the options in a word: one, or a few of a letter each."""
    if word.startswith("--"):
        option, equals, value = word.partition("=")
        yield option, value if equals else following
        return
    if not word.startswith("-") or not daemons:
        return
    for place, letter in enumerate(word[1:], 2):
        value = word[place:].removeprefix("=") or following
        yield _LONG.get(letter, f"-{letter}"), value
        if letter not in SWITCHES:
            return


def _of_value(option: str, value: str) -> str:
    """Return why an option's value cannot be; empty where it can."""
    name = value.partition("=")[0]
    if option == "--env" and name in _VARIABLES:
        return f"{name} names the job's cards, and gpulaunch sets it"
    if option == "--label" and name in LABELS:
        return _WATCHED
    if option == "--pid" and value:
        return "what runs in the container would not end with its first process; leave it out"
    return _OWN_CARDS if option == "--device" and _CARD.fullmatch(value) else ""


# ── the image in a command line ───────────────────────────────────────────────────────────────────

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
