"""What is known of the programs that scripts call: which need no card, which cannot be followed."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from msgspec import Struct

from gpulaunch.init.script import MASK, Unfit
from gpulaunch.init.values import ANY, NATURAL, Value
from gpulaunch.jobfile.commands import BUILTINS, PREFIXES, daemon_of

OWN_SHELL = frozenset({"nohup", "setsid", "command", "exec", "time"})
"""Words that belong to the script's own shell or session: `gpulaunch exec` stands behind them."""
_FILES = "mkdir cp mv rm rmdir ln cat ls touch chmod tar gzip gunzip zip unzip diff cmp du df find"
_TEXTS = "grep sed awk sort uniq head tail cut tr wc tee paste basename dirname realpath seq comm"
_OTHERS = "date sleep hostname whoami id uname which nproc free ps top nvidia-smi clear tput expr"
_CARRIERS = "wget curl git rsync scp pip md5sum sha256sum printenv mktemp readlink stat bc rev"
NO_CARD = frozenset([*_FILES.split(), *_TEXTS.split(), *_OTHERS.split(), *_CARRIERS.split()])
"""Programs that compute on no card, whatever their arguments."""
_SURE = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed|Rscript|julia|perl|java|bash|sh|uv")
"""Names that no file gives to a function of its own."""
ENVIRONMENTS = frozenset({"conda", "mamba", "micromamba", "module", "ml", "deactivate"})
"""Names that are functions where an environment is set up for the shell."""
_ELSEWHERE = frozenset({"ssh", "sshpass", "pdsh", "salloc", "kubectl", "sudo"})
_OF_TEXTS = frozenset({"parallel", "sem", "watch", "xargs"})
_OF_WRAPPER = re.compile(r"-.*|[0-9][0-9.,:-]*[smhd]?|[A-Za-z_]\w*=.*", re.DOTALL)


class ExecPlace(Struct, frozen=True):
    """Places among a command's words: `at`, before which `gpulaunch exec --` goes; `mask`, the
    word `CUDA_VISIBLE_DEVICES=...`; `env`, the `env` before it. -1 stands for none.
    """

    at: int
    mask: int = -1
    env: int = -1


def placed(words: Sequence[str]) -> ExecPlace:
    """Return the places among a command's words, as typed.

    `nohup` and `setsid` keep the wait for a card alive when the terminal closes, so that exec
    goes behind them. `timeout 2h` is to count the time of the program alone: exec goes before it.
    """
    at, env = 0, -1
    while at < len(words) - 1 and words[at] in OWN_SHELL and not words[at + 1].startswith("-"):
        at += 1
    for number, word in enumerate(words[at:], at):
        if word.lstrip("\"'").startswith(f"{MASK}="):
            return ExecPlace(at, number, env)
        if word.rpartition("/")[2] == "env":
            env = number
        elif not (word in PREFIXES or _OF_WRAPPER.fullmatch(word)) or (env >= 0 and word[0] == "-"):
            break
    return ExecPlace(at)


def needs_no_card(words: Sequence[str]) -> bool:
    """Tell whether a command's own program is one that computes on no card."""
    at = 0
    while at < len(words) - 1 and (words[at] in PREFIXES or (at and _OF_WRAPPER.match(words[at]))):
        at += 1
    name = words[at].rpartition("/")[2]
    return name in NO_CARD and not (name == "find" and any(w.startswith("-exec") for w in words))


def refuse_outside(words: Sequence[str]) -> None:
    """Raise Unfit for a command that does not start its work as its own descendant."""
    for at, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name in _ELSEWHERE:
            raise Unfit(f"{name} runs the command elsewhere, or with another environment")
        if name in _OF_TEXTS:
            raise Unfit(
                f"{name} makes commands of texts: write gpulaunch exec -- into them by hand, in"
                " place of the mask"
            )
        if name == "gpulaunch":
            raise Unfit("the command is behind gpulaunch already")
        if daemon_of(name, [word.strip("\"'") for word in words[at + 1 :]])[0]:
            raise Unfit(
                f"{name} has another program start the command, which does not end with it and"
                " would not have its card: write the command itself into a job file"
            )
        if not (word in PREFIXES or _OF_WRAPPER.fullmatch(word)):
            return


def refuse_no_program(value: Value, functions: Collection[str], sourced: bool) -> None:
    """Raise Unfit if a command may be no program, but something of the shell itself.

    `functions`: those that the script defines; `sourced`: a file that it reads may define more.
    """
    for text in value:
        name = text.split()[0] if text.split() else ""
        if "/" in name:
            continue
        if not name.strip(ANY + NATURAL):
            raise Unfit("its program is not known before the script runs")
        pattern = re.escape(name).replace(ANY, ".*").replace(NATURAL, r"\d+")
        if found := next(
            (one for one in (*functions, *ENVIRONMENTS) if re.fullmatch(pattern, one)), ""
        ):
            raise Unfit(f"{found} is a function: put the mask before the programs that it calls")
        if any(re.fullmatch(pattern, one) for one in BUILTINS - {"time"}):
            raise Unfit(f"{text.partition(ANY)[0]} is a part of the shell, not a program")
        if sourced and not (_SURE.fullmatch(name) or name in NO_CARD or name in PREFIXES):
            raise Unfit(f"{name} may be a function of a file that the script reads")
