"""What a text is, if not a shell script, and what the directives of a batch system mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from gpulaunch.init.script import Unfit

SHELLS = frozenset({"sh", "bash", "dash"})
_BY_NAME = {
    "YAML": ".yaml .yml",
    "a table (foreach: {csv: FILE} in a job file reads it)": ".csv .tsv",
    "a script of csh": ".csh .tcsh",
    "a script of zsh": ".zsh",
    "a script of fish": ".fish",
    "a script of Windows": ".bat .ps1",
    "a description for HTCondor": ".sub .condor",
    "a Makefile": ".mk makefile gnumakefile",
    "a Python program": ".py",
    "a notebook": ".ipynb",
    "an R program": ".r",
    "a Julia program": ".jl",
    "a Perl program": ".pl",
    "JSON": ".json",
    "TOML": ".toml",
}
_KEYS = re.compile(r"(?:\s*(?:#.*)?\n)*[\w./-]+:(?: .*)?\n")
_DIRECTIVE = re.compile(r"#(SBATCH|PBS|\$|BSUB)\s+(-\S.*)")
_SYSTEMS = {"SBATCH": "Slurm", "PBS": "PBS", "$": "SGE", "BSUB": "LSF"}
_MEANINGS = (
    (r"-(?:J|N|-job-name)[= ](?P<v>[A-Za-z_][\w.-]*)$", "name: {v}"),
    (r"(?:--gres=gpu|--gpus(?:-per-\w+)?[= ])(?::?[a-z][\w.-]*)?:?(?P<v>\d+)", "gpus: {v}"),
    (r".*\b(?:ngpus|gpus?)=(?P<v>\d+)", "gpus: {v}"),
    (r"(?:-c|--cpus-per-task)[= ]?(?P<v>\d+)", "cpus: {v}"),
    (r"(?:.*:)?(?:--)?mem[= ](?P<v>\d+)[gG]", "memory: {v}GiB"),
    (r"(?:.*:)?(?:--)?mem[= ](?P<v>\d+)M?$", "memory: {v}MiB"),
    (r"(?:-t|--time)[= ](?P<v>\d+)$", "timeout: {v}m"),
    (r"(?:-t|--time|-l (?:walltime|h_rt))[= ](?P<d>\d+)-(?P<h>\d+):", "timeout: {d}d{h}h"),
    (r"(?:-t|--time|-l (?:walltime|h_rt))[= ](?P<h>\d+):(?P<m>\d+):\d+", "timeout: {h}h{m}m"),
    (r"(?:-a|--array|-J|-t)[= ](?P<v>\d+-\d+)", "matrix: {{task: [FIRST, ..., LAST]}} of {v}"),
    (r"(?:-o|-e|--output|--error)\b.*", "(each job has a log: gpulaunch logs JOB)"),
    (r"(?:-d|--dependency)[= ].*", "needs: [JOB], or after: [JOB]"),
)


def refuse_other_text(name: str, source: str) -> None:
    """Raise Unfit for a text that is no script of sh or bash, with what it is."""
    path, first = PurePath(name.lower()), source.partition("\n")[0]
    known = (
        what for what, names in _BY_NAME.items() if (path.suffix or path.name) in names.split()
    )
    what = next(known, "")
    if first.startswith("#!"):
        words = [word for word in re.split(r"[\s/]+", first[2:]) if word and word[0] != "-"]
        what = "" if words and words[-1] in SHELLS else f"a script of {' '.join(words[-1:])}"
    elif not what and _KEYS.match(source):
        what = "YAML, or a Makefile"
    if what:
        raise Unfit(f"this is {what}; gpulaunch init reads scripts of sh and bash")


def advice(source: str) -> tuple[str, ...]:
    """Return what the directives of Slurm, PBS or SGE mean in a job file, one a line."""
    found = [match.groups() for match in map(_DIRECTIVE.match, source.split("\n")) if match]
    if not found:
        return ()
    lines = [f"its directives are for {_SYSTEMS[found[0][0]]}; in a job file:"]
    for _, text in found:
        directive = text.partition(" #")[0].strip()
        lines.append(f"    {directive:<40} {', '.join(dict.fromkeys(_meant(directive))) or '-'}")
    if found[0][0] == "SBATCH":
        lines.append("or run a job file on Slurm: gpulaunch run --engine slurm")
    return tuple(lines)


def _meant(directive: str) -> Iterator[str]:
    for pattern, meaning in _MEANINGS:
        if match := re.match(pattern, directive):
            yield meaning.format(**match.groupdict())
