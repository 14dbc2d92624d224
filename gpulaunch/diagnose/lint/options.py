"""Cards and ports on a command line: `--device cuda:1`, `--gpu_ids 0,1`, `--nproc_per_node 4`.

Works on words whose value is known, None for the others. What an option means depends on the
program: where `--gpu 1` may as well switch the GPU on, only more than the job has is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gpulaunch.containers.lines import DAEMONS, OWN, image_in, takes_value
from gpulaunch.diagnose.lint import wording
from gpulaunch.diagnose.lint.finding import Suspect, option_name
from gpulaunch.diagnose.lint.wording import MASK

# fmt: off
_INDEX = frozenset({
    "gpu_id", "gpu_index", "gpu_device", "gpu_device_id", "device_id", "device_index", "gpuid",
    "cuda_device", "cuda_id", "main_gpu", "cuda_index", "gpu_idx", "gpu_no", "device",
})
_LIST = frozenset({
    "gpu_ids", "device_ids", "gpu_devices", "cuda_devices", "visible_devices", "gpus", "devices",
    "gpu", "device", "gpuids", "gpu_id",
})
_COUNT = frozenset({
    "gpus", "devices", "num_gpus", "n_gpus", "n_gpu", "ngpu", "ngpus", "num_gpu", "num_devices",
    "gpus_per_node",
})
_PARALLEL = frozenset({"tensor_parallel_size", "tp", "tp_size"})
_PORTS = frozenset({"master_port", "main_process_port"})
_RENDEZVOUS = frozenset({"rdzv_endpoint", "rdzv_backend_endpoint"})
_TEXTUAL = frozenset({
    "echo", "printf", "grep", "egrep", "rg", "sed", "awk", "test", "[", "[[", "git", "cat", "ls",
    "rm", "cp", "mv", "mkdir", "case", "export", "declare", "local", "readonly", "set", "for", "ps",
    "nvidia-smi", "pkill", "pgrep", "curl", "wget", "pip", "conda", "which", "tee", "read", "in",
})
_SWITCHES = frozenset({"mmseqs", "foldseek", "colabfold_search", "colabfold_batch", "hmmsearch"})
_CONTAINERS = DAEMONS | {"podman"}
_CLEANED = frozenset({"-e", "--cleanenv", "-C", "--containall"})
_ASKED_OF_SLURM = frozenset({"gres", "tres_per_task", "tres_per_job"})  # gpu:2 is how many
_TORCHRUN = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
# fmt: on
_MEMORY_OPTIONS = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static"}
"""Programs that take nine tenths of a card, and the option that says another part (docs.vllm.ai,
engine arguments; docs.sglang.ai, server arguments)."""
_NUMBER = re.compile(r"[0-9]{1,3}")
_NUMBERS = re.compile(r"[0-9]{1,3}(?:[,，、;:][0-9]{1,3})*,?")
_ENDPOINT = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\]):([1-9][0-9]*)")
_MACHINE_CARD = re.compile(r"(?:device=|nvidia\.com/gpu=)?[0-9]{1,2}(?:,[0-9]{1,2})*")
_KEY = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)

AMBIGUOUS = frozenset({"--gpu", "-gpu"})
"""`--gpu 1` is the second card, one card, or a switch, as its program has it."""

Words = Sequence["str | None"]


def check(
    words: Words, indices: frozenset[str] = frozenset(), handed_on: bool = False
) -> Iterator[tuple[int, Suspect]]:
    """Yield (number of the word, suspect). `indices`: options known to take a card's number.

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
    if suspect := _whole_memory(words):
        yield 0, suspect
    if (at := _numbers_alone(words)) is not None:
        yield at, wording.reads_no_uuids(words[at] or "")
    launcher = _launcher(words)
    for at, option, value in settings(words):
        if option in _ASKED_OF_SLURM:
            continue
        shown = _typed(words, at)
        suspect = _setting(program, launcher, option, value, shown, indices)
        if suspect:
            yield at, suspect
    for at, word in enumerate(words[1:], 1):
        if word and (suspect := wording.device(word)) and not _is_value(words, at):
            yield at, suspect


def _whole_memory(words: Words) -> Suspect | None:
    """Return what is suspect in a server of models that is not told how much memory to take."""
    module = next((two for one, two in pairwise(words[:12]) if one == "-m"), "") or ""
    started = (words[0] or "").rpartition("/")[2] if words[1:2] == ["serve"] else module
    program, _, rest = started.partition(".")
    option = _MEMORY_OPTIONS.get(program)
    if option is None or (module and not rest):
        return None
    told = any(option == name for _, name, _ in settings(words))
    return None if told else wording.whole_memory(program, option)


def _numbers_alone(words: Words) -> int | None:
    """Return where the name of a program stands that reads the mask's parts as numbers, vLLM."""
    for at, word in enumerate(words[:12]):
        name = (word or "").rpartition("/")[2]
        behind_m = at and words[at - 1] == "-m"
        if name == "vllm" if not behind_m else name.partition(".")[0] == "vllm":
            return at if at == 0 or behind_m else None
    return None


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
        elif word.startswith("-") and not _NUMBER.fullmatch(word[1:]):
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


def _launcher(words: Words) -> str:
    """Which of the launchers of several processes stands first: torchrun, accelerate, deepspeed."""
    for at, word in enumerate(words[:12]):
        name = (word or "").rpartition("/")[2]
        if name in _TORCHRUN:
            return "torchrun"
        if name in ("accelerate.commands.launch", "deepspeed"):
            return name.partition(".")[0]
        if name == "accelerate" and "launch" in words[at + 1 : at + 2]:
            return "accelerate"
        if name.endswith((".py", ".sh")):
            return ""
    return ""


def _setting(
    program: str,
    launcher: str,
    option: str,
    value: str | None,
    shown: str,
    indices: frozenset[str],
) -> Suspect | None:
    if launcher and (suspect := _of_launcher(launcher, option, value, shown)):
        return suspect
    if value is None:
        return None
    if option in _PORTS and _NUMBER.match(value) and value.isdigit() and value != "0":
        return wording.port(shown)
    if option in _RENDEZVOUS and _ENDPOINT.fullmatch(value):
        return wording.endpoint(shown)
    if suspect := wording.typed_device(value):
        return suspect
    if not _NUMBERS.fullmatch(value) or program in _SWITCHES:
        return None
    if option in _LIST and (suspect := wording.comma(value)):
        return suspect
    return _numbered(option, value, shown, indices)


def _numbered(option: str, value: str, shown: str, indices: frozenset[str]) -> Suspect | None:
    if not _NUMBER.fullmatch(value):
        several = [int(one) for one in re.findall("[0-9]+", value)]
        return wording.index(max(several), shown, "0") if option in _LIST and max(several) else None
    number = int(value)
    if number == 0:
        return None
    if option in _INDEX or option in ("gpu_ids", "device_ids", "gpu_devices"):
        return wording.index(number, shown, "0")
    if option in _COUNT or option in _PARALLEL:
        return wording.count(number, shown) if number > 1 else None
    if option == "gpu":
        if option in indices:
            return wording.index(number, shown, "0")
        return wording.index_or_count(number, shown) if number > 1 else None
    return None


def _of_launcher(launcher: str, option: str, value: str | None, shown: str) -> Suspect | None:
    """Return what is suspect in an option of a program that starts a process per card."""
    number = int(value) if value and _NUMBER.fullmatch(value) else 0
    if launcher == "torchrun" and option == "nproc_per_node" and number > 1:
        return wording.count(number, shown, least=1)
    if launcher == "accelerate" and option == "num_processes" and number > 1:
        return wording.count(number, shown, least=1)
    if value is None or "VISIBLE_DEVICES" in value or "GPULAUNCH_" in value:
        return None  # the job's own cards, perhaps
    if launcher == "accelerate" and option == "gpu_ids" and value != "all":
        return wording.launcher_mask(f"accelerate launch {shown}", value)
    if launcher == "deepspeed" and option in ("include", "exclude", "num_gpus"):
        return wording.launcher_mask(f"deepspeed {shown}", value)
    return None


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
