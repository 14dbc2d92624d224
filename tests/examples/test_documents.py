"""Every example in our documents is run, or loaded, or parsed; what cannot be says why."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gpulaunch.cli import COMMANDS, cli
from gpulaunch.core.model import address_variable
from gpulaunch.diagnose.lint.absent import looking
from gpulaunch.gpus.discover import simulated
from gpulaunch.jobfile.config_file import read_file
from gpulaunch.jobfile.fields import FIELDS
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text
from gpulaunch.jobfile.placeholders import RESERVED
from gpulaunch.jobfile.shell import commands_in
from gpulaunch.journal import codec
from tests.examples.documents import DOCUMENTS, Block, blocks, commands
from tests.examples.helpers import ROOT
from tests.examples.stage import environ_of, laid
from tests.helpers import goes_along

BLOCKS = list(blocks())
NOT_RUN = {
    "python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/gpulaunch run"
    " examples/quickstart/jobs.yaml --simulate 2": "installs from a package index;"
    " its run is test_the_quickstart_runs_as_the_readme_says",
    ".venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m pytest -n auto": (
        "these tests themselves"
    ),
    "for s in inputs/*.fasta; do": "translated: test_a_script_becomes_the_job_file_beside_it",
    "gpulaunch run jobs.yaml --engine slurm": "wants a cluster: tests/slurm has some",
    "gpulaunch run examples/device-errors/jobs.yaml": "installs torch: tests/examples/test_real.py",
    "python3 -m venv .venv && .venv/bin/pip install -e '.[test]'": "installs from a package index",
    "pip install . ./plugins/hydra-gpulaunch-launcher": "wants Hydra: tests/beside/test_hydra.py",
    "pytest -n auto                            # what a change needs: four minutes on two cores": (
        "these tests themselves, and benchmarks"
    ),
    "python -m sphinx -W --keep-going -n -b html docs build/docs": "tests/docs/test_build.py",
    "GPULAUNCH_TEST_HISTORIES=2000 pytest tests/slurm/test_faults.py": "these tests themselves",
    "GPULAUNCH_TEST_WRAPPED=60 GPULAUNCH_TEST_SEED=1 pytest tests/slurm/test_wrapped.py": (
        "twenty minutes on a cluster of their own"
    ),
    "snakemake -j 40": "tests/beside/test_snakemake.py",
    "nextflow run main.nf": "tests/beside/test_nextflow.py",
    "python -m gpulaunch.journal.trace trace": "tests/cli/test_trace.py",
    "gpulaunch add -- python train.py --lr 3e-4": "wants a live run: tests/cli/test_live_list.py",
    "gpulaunch set 'fold-x*' priority=10": "wants jobs that wait: tests/cli/test_live_list.py",
    "gpulaunch run jobs.yaml --follow": "stays until told to finish: tests/cli/test_follow.py",
    "gpulaunch run commands.txt": "lists of commands are run in tests/cli/test_command_list.py",
    "gpulaunch completion bash > ~/.local/share": "writes below HOME: tests/cli/test_completion.py",
    "gpulaunch queue start --detach": "stays until it is stopped: tests/cli/test_queue.py",
    "python -m tests.slurm.cluster             # prints `export SLURM_CONF=...`, for another"
    " terminal": "stays until it is ended",
}
"""Shell blocks, by how they start, that are parsed and not run, and why."""
NO_EXAMPLE = {
    "msa-7rk1   running   4:31  n1": "what `status` prints on a cluster: tests/slurm/test_views.py",
    "agent/native/       the processes above a job, in C": (
        "a list of directories: test_directories_that_are_named_are_there"
    ),
    "gpulaunch explain: RuntimeError: Expected all tensors to be on the same device,"
    " but got tensors is on": "a report as it is printed: tests/explain",
}
"""Blocks, by how they start, in which nothing is to be typed."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples' directory, in which the first job list of the README was run."""
    at = laid(tmp_path_factory.mktemp("stage"))
    (at / "jobs.yaml").write_text(next(one for one in BLOCKS if one.kind == "yaml").text)
    run_there("gpulaunch run jobs.yaml", at)
    return at


def is_example(block: Block) -> bool:
    if block.kind == "text":  # a picture, or what is printed
        return False
    return not any(block.first.startswith(start) for start in NO_EXAMPLE)


def is_run(block: Block) -> bool:
    return not any(block.first.startswith(start) for start in NOT_RUN)


def of_kind(*kinds: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind in kinds and is_example(block)]


def place(block: Block) -> str:
    return block.where


REGISTERS = '"mcpServers"'
"""What is in a block of JSON that clients of the Model Context Protocol read."""


def all_text() -> str:
    return "\n".join((ROOT / document).read_text() for document in DOCUMENTS)


def test_every_block_is_of_a_kind_that_is_tried() -> None:
    assert {block.kind for block in BLOCKS if is_example(block)} == {
        "yaml",
        "shell",
        "python",
        "json",
        "diff",
    }
    firsts = [block.first for block in BLOCKS]
    for start in (*NOT_RUN, *NO_EXAMPLE):
        assert any(first.startswith(start) for first in firsts), f"no such block any more: {start}"


# ── job files ───────────────────────────────────────────────────────────────────────────────────


def whole(text: str) -> str:
    """A fragment as a job file: entries below `jobs:`, the file's own keys beside a job."""
    read = yaml.safe_load(text)
    if isinstance(read, list):
        return f"jobs:\n{text}"
    return text if "jobs" in read else f"{text}jobs: [{{run: 'true'}}]\n"


def python_blocks() -> str:
    return "\n".join(block.text for block in of_kind("python"))


def job_files() -> list[Block]:
    return [block for block in of_kind("yaml") if not of_the_configuration(block)]


def of_the_configuration(block: Block) -> bool:
    return "/configuration.md:" in block.where


@pytest.mark.parametrize("block", list(filter(of_the_configuration, of_kind("yaml"))), ids=place)
def test_a_configuration_file_is_read_without_a_mistake(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(block.text)
    found = [mistake.message for mistake in read_file(str(file), is_machine=True).mistakes]
    limits_elsewhere = os.geteuid() != 0 and "limits:" in block.text
    assert bool(found) == limits_elsewhere, found


@pytest.mark.parametrize("block", job_files(), ids=place)
def test_a_job_file_loads_with_all_that_it_runs(block: Block, stage: Path) -> None:
    (stage / "fold.py").write_text(python_blocks())
    environ = environ_of(stage)
    text = whole(block.text).encode()
    cards = simulated(2, "documents")
    plan = load_text(
        text,
        Surroundings(environ, look=looking(environ, False), cards=lambda _: cards),
        name=block.where,
        base=stage,
    )
    assert plan.jobs


def test_every_field_form_and_placeholder_is_explained() -> None:
    text = all_text()
    table = text.partition("| field of a job |")[2].partition("\n\n")[0]
    assert [name for name in FIELDS if f"`{name}`" not in table] == []
    assert [name for name in RESERVED if f"{{{{{name}}}}}" not in text] == []
    plans = [yaml.safe_load(whole(block.text)) for block in job_files()]
    used = [job["foreach"] for plan in plans for job in plan["jobs"] if "foreach" in job]
    forms = {key for form in used if isinstance(form, dict) for key in form}
    assert forms == {"values", "lines", "csv", "fasta"}
    assert any("exclude" in job.get("matrix", {}) for plan in plans for job in plan["jobs"])
    assert address_variable("llm") in text


@pytest.mark.parametrize(
    "words",
    [
        "every combination, less what its key `exclude` names",
        "the first card as the job sees it: always 0",
        "`shell: zsh`, or `[zsh, -c]`",
        "`.tsv` files go under `csv:` as well",
        "is past the import after 0.01 s",
        "`sys.exit(n)` gives the item that status and ends the process, so that the next item loads"
        " anew",
        "again, at most so often: a number",
        "A file must not be empty, and a directory must hold something.",
        "`on` without quotes is true; gpulaunch takes it either way",
    ],
)
def test_what_is_easily_misread_is_said(words: str) -> None:
    assert words in " ".join(all_text().split())


# ── commands ────────────────────────────────────────────────────────────────────────────────────


def typed_in(text: str) -> Iterator[list[str]]:
    """The words of each command of ours in a piece of shell."""
    for command in commands_in(text, "bash"):
        if command.program == "gpulaunch" and command.name is not None:
            end = command.arguments[-1].end if command.arguments else command.name.end
            yield shlex.split(text[command.name.end : end])


def parse(words: list[str]) -> None:
    """As the command line would read it; nothing is called. Raises click's errors."""
    root = click.Context(cli, info_name="gpulaunch")
    if words == ["--version"]:  # an option of no command
        return
    name, command, rest = cli.resolve_command(root, words)
    assert command is not None
    command.make_context(name, rest, parent=root)


@pytest.mark.parametrize("block", of_kind("shell"), ids=place)
def test_commands_of_ours_are_understood(block: Block, monkeypatch: Any) -> None:
    monkeypatch.chdir(ROOT)
    for words in typed_in(block.text):
        parse(words)


@pytest.mark.parametrize(
    "command", list(commands()), ids=lambda block: f"{block.where}-{block.text}"
)
def test_commands_within_the_text_are_understood(command: Block) -> None:
    words = shlex.split(command.text)[1:]
    filled = {"init": ["run_all.sh"], "check": ["jobs.yaml"], "run": ["jobs.yaml"]}
    bare = [word for word in words if not word.startswith("[")]
    if len(bare) == 1:
        bare += filled.get(bare[0], [])
    if bare == ["exec"] or bare[-1] == "--":
        bare += ["true"]
    parse(bare)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_a_commands_help_are_understood(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    lines = re.findall(r"^ *((?:.*\| )?gpulaunch .*?)(?:  +.*)?$", command.help or "", re.MULTILINE)
    assert lines, "no example"
    for line in lines:
        for words in typed_in(line):
            parse(words)


@pytest.mark.parametrize("block", [block for block in of_kind("shell") if is_run(block)], ids=place)
def test_commands_run_on_pretend_cards(block: Block, stage: Path) -> None:
    run_there(block.text, stage)


def run_there(text: str, stage: Path) -> None:
    """Run it as a shell would; it must succeed."""
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", text],
        cwd=stage,
        env=environ_of(stage),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=goes_along(),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_script_becomes_the_job_file_beside_it(tmp_path: Path) -> None:
    script, made, changed = (
        one for one in BLOCKS if one.where.startswith("docs/guide/from-a-script.md")
    )
    at = laid(tmp_path)
    (at / "run_all.sh").write_text(script.text)
    run_there("gpulaunch init run_all.sh -o made.yaml", at)
    assert yaml.safe_load((at / "made.yaml").read_text()) == yaml.safe_load(made.text)
    before = [line[1:] for line in changed.text.splitlines() if line[0] != "+"]
    after = [line[1:] for line in changed.text.splitlines() if line[0] != "-"]
    (at / "seeds.sh").write_text("\n".join(before) + "\n")
    run_there("gpulaunch init seeds.sh -o new.sh", at)
    assert (at / "new.sh").read_text().splitlines() == after


def test_programs_and_files_that_commands_name_are_there() -> None:
    """Of what is not ours in a command: tests, modules and scripts of this repository."""
    for block in of_kind("shell"):
        for command in commands_in(block.text, "bash"):
            words = [word.text for word in (command.name, *command.arguments) if word]
            for word, following in pairwise([*words, ""]):
                if word == "-m" and following.startswith("tests"):
                    assert importlib.util.find_spec(following), f"{block.where}: {following}"
                elif word.startswith((".ci/", "tests/", "examples/")):
                    assert (ROOT / word).exists(), f"{block.where}: {word}"


def test_directories_that_are_named_are_there() -> None:
    tree = next(block for block in BLOCKS if block.first.startswith("agent/native/"))
    for name in re.findall(r"^([a-z]+/[^\s,]+)", tree.text, re.MULTILINE):
        assert any((ROOT / "gpulaunch").glob(name)), name


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_and_headings_that_are_linked_are_there(document: str) -> None:
    path = ROOT / document
    for link in re.findall(r"\]\(([^):\s]+)\)", path.read_text()):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), f"{document}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{document}: {link}"


def anchors(path: Path) -> set[str]:
    """Of a document's headings, as those who show Markdown make them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


# ── The journal ─────────────────────────────────────────────────────────────────────────────────


JOURNAL = [block for block in of_kind("json") if REGISTERS not in block.text]
"""The other ones are tried in tests/mcp."""


@pytest.mark.parametrize("block", JOURNAL, ids=place)
def test_a_line_of_a_journal_is_one(block: Block) -> None:
    line = codec.decode(block.text.strip().encode())
    assert codec.encode(line.number, line.fact, line.at) == block.text.encode()


# ── Python ──────────────────────────────────────────────────────────────────────────────────────

RUN = """
class IgFoldRunner:
    def __init__(self, num_models): pass
    def fold(self, pdb, fasta_file, do_refine): open(pdb, 'w').write('x')

{block}
class Item(dict):
    __getattr__ = dict.__getitem__

if 'fold' in globals():
    fold(load(), Item(out='.', path='inputs/a.fasta'))
"""


@pytest.mark.parametrize("block", of_kind("python"), ids=place)
def test_python_runs_on_a_pretend_card(block: Block, stage: Path) -> None:
    """`batches` is the reader's own, and the executor takes pretend cards; no line is changed."""
    before = "import torch\nbatches = [[1, 2], [3]]\n"
    if "GpuExecutor" in block.text:
        before += (
            "import functools, gpulaunch\n"
            "gpulaunch.GpuExecutor = functools.partial(gpulaunch.GpuExecutor, simulate=1)\n"
        )
    (stage / "example.py").write_text(before + RUN.replace("{block}", block.text))
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=stage,
        env={**environ_of(stage), "PYTHONPATH": f"{ROOT}:{stage}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=goes_along(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
