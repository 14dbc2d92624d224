"""What a command of known words runs, and what its options mean for cards and ports.

Works on words whose value is known, None for the others. What an option means depends on the
program, so that OPTIONS is a table of programs. A device such as `cuda:1` is one wherever it is.
Of files only those count that are named: what an installed command runs is its authors' business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

from gpulaunch.containers.options import DAEMONS, OWN, image_in, takes_value
from gpulaunch.diagnose.lint import wording
from gpulaunch.diagnose.lint.finding import ProgramRun, SetOptions, Suspect, option_name
from gpulaunch.diagnose.lint.wording import MASK

Words: TypeAlias = Sequence["str | None"]
Kind: TypeAlias = Literal["file", "python", "shell", "module"]
Meaning: TypeAlias = Callable[[str, str], Suspect | None]
"""What is suspect in the value of an option, which comes second; first the words for people."""

_ENDPOINT = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\]):([1-9][0-9]*)")
_CARDS = re.compile(r"[0-9]{1,3}(?:[,:;][0-9]{1,3})*,?")


def _card(shown: str, value: str) -> Suspect | None:
    """For the numbers of cards, counted from 0."""
    number = max(map(int, re.findall("[0-9]+", value))) if _CARDS.fullmatch(value) else 0
    return wording.index(number, shown, "0") if number else None


def _port(shown: str, value: str) -> Suspect | None:
    return wording.port(shown) if value.isdigit() and value != "0" else None


def _endpoint(shown: str, value: str) -> Suspect | None:
    return wording.endpoint(shown) if _ENDPOINT.fullmatch(value) else None


def _mask(program: str) -> Meaning:
    """For cards of the machine, of which the program makes a mask of its own."""

    def suspect(shown: str, value: str) -> Suspect | None:
        own = value == "all" or "VISIBLE_DEVICES" in value or "GPULAUNCH_" in value
        return None if own else wording.launcher_mask(f"{program} {shown}")

    return suspect


# fmt: off
_TORCHRUN: dict[str, Meaning] = {"master_port": _port, "rdzv_endpoint": _endpoint}
_ACCELERATE: dict[str, Meaning] = {
    "gpu_ids": _mask("accelerate launch"), "main_process_port": _port,
}
OPTIONS: dict[str, dict[str, Meaning]] = {
    "torchrun": _TORCHRUN,
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "accelerate": _ACCELERATE,
    "accelerate.commands.launch": _ACCELERATE,
    "deepspeed": {
        "include": _mask("deepspeed"), "exclude": _mask("deepspeed"),
        "num_gpus": _mask("deepspeed"), "master_port": _port,
    },
    "sglang.launch_server": {"base_gpu_id": _card},
    "llama-cli": {"main_gpu": _card, "mg": _card},
    "llama-server": {"main_gpu": _card, "mg": _card},
    "lightgbm": {"gpu_device_id": _card},
    "yolo": {"device": _card},
    "gmx": {"gpu_id": _card},
    "gmx_mpi": {"gpu_id": _card},
    "run_alphafold.py": {"gpu_device": _card},
    "relion_refine": {"gpu": _card},
    "relion_refine_mpi": {"gpu": _card},
    "relion_autopick": {"gpu": _card},
}
"""What options mean: program (or the script or module behind python), option, meaning."""
_TEXTUAL = frozenset({
    "echo", "printf", "grep", "egrep", "rg", "sed", "awk", "test", "[", "[[", "git", "cat", "ls",
    "rm", "cp", "mv", "mkdir", "case", "export", "declare", "local", "readonly", "set", "for", "ps",
    "nvidia-smi", "pkill", "pgrep", "curl", "wget", "pip", "conda", "which", "tee", "read", "in",
})
_CONTAINERS = DAEMONS | {"podman"}
_CLEANED = frozenset({"-e", "--cleanenv", "-C", "--containall"})
# fmt: on
_MACHINE_CARD = re.compile(r"(?:device=|nvidia\.com/gpu=)?[0-9]{1,2}(?:,[0-9]{1,2})*")
_ASKED_OF_SLURM = frozenset({"gres", "tres_per_task", "tres_per_job"})  # gpu:2 is how many
_KEY = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,3}")

# ── options ─────────────────────────────────────────────────────────────────────────────────────


def check(words: Words, handed_on: bool = False) -> Iterator[tuple[int, Suspect]]:
    """Yield (number of the word, suspect).

    `handed_on`: the mask reaches apptainer's containers by its variable.
    """
    program = (words[0] or "").rpartition("/")[2] if words else ""
    if program in _TEXTUAL:
        return
    if program in _CONTAINERS:
        yield from _container(words)
        return
    if program in OWN and not handed_on:
        yield from _without_the_mask(words)
    meanings = _meanings(words)
    for at, option, value in settings(words):
        if value is None or option in _ASKED_OF_SLURM:
            continue
        suspect = wording.typed_device(value)
        if suspect is None and option in meanings:
            suspect = meanings[option](_typed(words, at), value)
        if suspect:
            yield at, suspect
    for at, word in enumerate(words[1:], 1):
        if word and (suspect := wording.device(word)) and not _is_value(words, at):
            yield at, suspect


def _meanings(words: Words) -> dict[str, Meaning]:
    """Return the options of the first program in a command that OPTIONS has."""
    for word in words[:12]:
        name = (word or "").rpartition("/")[2]
        if name in OPTIONS or name.endswith((".py", ".sh")):
            return OPTIONS.get(name, {})
    return {}


def is_textual(program: str) -> bool:
    """Tell whether a program's words are texts for people or patterns, whatever they look like."""
    return program in _TEXTUAL and program != "conda"  # conda run


def settings(words: Words) -> Iterator[tuple[int, str, str | None]]:
    """Yield (number of the value's word, option, value) of `--a b`, `--a=b`, Hydra's `x.a=b`."""
    for at, word in enumerate(words):
        if not word or at == 0:
            continue
        name, equals, value = word.partition("=")
        if word.startswith("--") and equals:
            yield at, option_name(name), value
        elif equals and _KEY.fullmatch(name):
            yield at, name.rpartition(".")[2], value
        elif word.startswith("-") and not _DIGITS.fullmatch(word[1:]):
            following = words[at + 1] if at + 1 < len(words) else ""
            if following is None or (following and not following.startswith("-")):
                yield at + 1, option_name(word), following


def _typed(words: Words, at: int) -> str:
    """Return a setting as it was typed, its value left out where that is not known."""
    word = (words[at] or "")[:100]
    return word if "=" in word and not _is_value(words, at) else f"{words[at - 1]} {word}".strip()


def _is_value(words: Words, at: int) -> bool:
    before = words[at - 1] or ""
    return before.startswith("-") and "=" not in before


def _container(words: Words) -> Iterator[tuple[int, Suspect]]:
    """`docker run --gpus all`, or `--gpus device=0`, by any of their spellings."""
    image = image_in(words)
    for at, option, value in settings(words):
        plain = (value or "").strip("\"'")
        if option == "gpus" and plain == "all":
            yield at, wording.all_cards("--gpus all", image)
        elif option == "device" and plain == "nvidia.com/gpu=all":
            yield at, wording.all_cards(f"--device {plain}", image)
        elif option in ("gpus", "device") and _MACHINE_CARD.fullmatch(plain):
            yield at, wording.machine_cards(f"--{option} {plain}", image)
        elif option in ("e", "env") and plain.startswith("NVIDIA_VISIBLE_DEVICES="):
            which = plain.partition("=")[2]
            if which == "all":
                yield at, wording.all_cards(f"--env {value}", image)
            elif _MACHINE_CARD.fullmatch(which):
                yield at, wording.machine_cards(f"--env {value}", image)


def _without_the_mask(words: Words) -> Iterator[tuple[int, Suspect]]:
    """`apptainer exec --nv --cleanenv`: cards, and nothing that says which are the job's."""
    image = image_in(words)
    own = list(words[: words.index(image)]) if image else []
    unsure = any(
        word is None and (before == "--env" or not takes_value(before))
        for before, word in pairwise(own)
    )
    cleaned = next((at for at, word in enumerate(own) if word in _CLEANED), 0)
    if not cleaned or unsure or "--nv" not in own or any(MASK in (word or "") for word in own):
        return
    yield cleaned, wording.mask_left_behind(own[cleaned] or "", image)


# ── what is run ─────────────────────────────────────────────────────────────────────────────────

# fmt: off
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*|ipython3?")
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh", "source", "."})
_LAUNCHERS = frozenset({
    "torchrun", "accelerate", "deepspeed", "kernprof", "horovodrun", "streamlit", "pytest",
    "py.test", "mprof", "scalene", "viztracer", "py-spy",
})
_RUN_MODULES = frozenset({
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "cProfile",
    "pdb", "debugpy", "kernprof", "trace", "coverage", "viztracer", "torch.utils.bottleneck",
})
_WRAPPERS = frozenset({
    "srun", "mpirun", "mpiexec", "conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pdm",
    "nsys", "ncu", "apptainer", "singularity", "xvfb-run", "hatch", "pixi", "rye", "numactl",
    "coverage", "gdb", "valgrind", "perf", "strace", "catchsegv", "script", "dbus-run-session",
})
# fmt: on
_UNDERSTOOD = re.compile(
    r"-[bBdEiIOPqsSuvxeu]+|-[WX].*|--|-o|-eo|-euo|-euxo|--check-hash-based-pycs|-l|--login"
)
_ERREXIT = re.compile(r"-[a-z]*e|errexit")
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs", "-o", "-eo", "-euo", "-euxo"})
_VALUED = frozenset({"-W", "-X", "--check-hash-based-pycs"})


def run_of(words: Words, cwd: str, more: bool = False) -> ProgramRun | None:
    """Return the file that a command runs, program first. `more`: see SetOptions."""
    start = _start(words)
    if start is not None and start[1] == "module" and start[2] in _RUN_MODULES:
        start = _of_launcher(words, start[0] + 1)
    if start is None:
        return None
    number, kind, what = start
    rest = words[number + 1 :]
    names = {option for _, option, _ in settings(["", *rest])}
    names |= {option_name(word) for word in rest if word and word[:1] == "-"}
    own = words[0] not in ("source", ".") and not any(
        _ERREXIT.match(word or "") for word in words[1:number]
    )
    return ProgramRun(kind, what, SetOptions(frozenset(names), more), cwd, number, own)


def _start(words: Words) -> tuple[int, Kind, str] | None:
    """Where the script's name stands, its kind and what it is."""
    for number, word in enumerate(words[:40]):
        if word is None and number == 0:
            return None
        if word is None:
            continue
        name = word.rpartition("/")[2]
        if _PYTHON.fullmatch(name):
            return _of_python(words, number + 1)
        if name in _SHELLS and number == 0:
            return _of_shell(words, number + 1)
        if name in _LAUNCHERS:
            return _of_launcher(words, number + 1)
        if number == 0 and name not in _WRAPPERS:
            if word.endswith(".py"):
                return number, "python", word
            return (number, "file", word) if "/" in word else None
        if number and word.endswith(".py"):
            return number, "python", word
        if number and name in ("bash", "sh"):
            return _of_shell(words, number + 1)
    return None


def _of_python(words: Words, at: int) -> tuple[int, Kind, str] | None:
    while at < len(words):
        word = words[at]
        if word is None:
            return None
        if word in ("-c", "-"):
            return None
        if word == "-m":
            what = words[at + 1] if at + 1 < len(words) else None
            return None if what is None else (at + 1, "module", what)
        if not word.startswith("-"):
            return at, "python", word
        at += 2 if word in _VALUED else 1
    return None


def _of_shell(words: Words, at: int) -> tuple[int, Kind, str] | None:
    while at < len(words):
        word = words[at]
        if word is None or re.fullmatch(r"-[a-z]*c", word):
            return None
        if not word.startswith(("-", "+")):
            return at, "shell", word
        at += 2 if word in ("-o", "+o", "-eo") or re.fullmatch(r"-[a-z]*o", word) else 1
    return None


def _of_launcher(words: Words, at: int) -> tuple[int, Kind, str] | None:
    """Return the first script; or the module behind `-m`."""
    for number in range(at, len(words)):
        word = words[number]
        if word in ("-m", "--module") and number + 1 < len(words):
            what = words[number + 1]
            return None if what is None else (number + 1, "module", what)
        if word and word.endswith(".py"):
            return number, "python", word
    return None


def of_interpreter(words: Words, number: int) -> bool:
    """Tell whether every word between an interpreter and its script is a known option."""
    valued = False
    for word in words[1:number]:
        if word is None:
            return False
        if not valued and not _UNDERSTOOD.fullmatch(word):
            return False
        valued = not valued and word in _WITH_VALUE
    return not valued
