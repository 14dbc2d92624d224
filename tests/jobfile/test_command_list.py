"""A plain list of commands: told from a job file, its lines and names, what a line cannot be."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulaunch.base.errors import JobFileError, UsageError
from gpulaunch.core.model import RetryPolicy
from gpulaunch.core.template import shown
from gpulaunch.jobfile.command_list import is_list
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load, load_text
from gpulaunch.jobfile.plan import Plan
from gpulaunch.jobfile.source import Following

ENVIRON = {"HOME": "/nonexistent", "PATH": os.defpath}


def listed(text: str | bytes, name: str = "commands.txt", defaults: Sequence[str] = ()) -> Plan:
    data = text.encode() if isinstance(text, str) else text
    return load_text(
        data, Surroundings(ENVIRON, defaults=defaults), name=name, base=Path("/nonexistent")
    )


def commands(text: str | bytes) -> list[str]:
    return [shown(job.run) for job in listed(text).jobs]  # type: ignore[arg-type]


def names(text: str) -> list[str]:
    return [job.name for job in listed(text).jobs]


def mistakes(text: str | bytes, name: str = "commands.txt") -> list[str]:
    """The first line of each mistake, without the file's name."""
    with pytest.raises(JobFileError) as caught:
        listed(text, name)
    assert caught.value.status == 2
    return [block.split("\n")[0].removeprefix(f"{name}:") for block in caught.value.mistakes]


# ── a list, or a job file ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "text", "listed"),
    [
        ("jobs.yaml", "echo 1\n", False),
        ("JOBS.YML", "echo 1\n", False),
        ("jobs.json", "echo 1\n", False),
        ("commands.txt", "echo 1\n", True),
        ("commands", "echo 1\n", True),
        ("commands", "", True),
        ("jobs", "jobs: [{run: x}]\n", False),
        ("jobs.txt", "# a comment\nname: x\njobs:\n- run: x\n", False),
        ("jobs.txt", '"jobs": [{run: x}]\n', False),
        ("jobs.txt", "---\njobs: [{run: x}]\n", False),
        ("stdin", '{"name": "x", "jobs": [{"run": "x"}]}', False),
        ("stdin", "# made\n{jobs: [{run: x}]}", False),
        ("stdin", "{ echo 1; echo 2; }\n", True),
        ("stdin", "./run --name: x\n  jobs: x\n", True),
        ("stdin", "jobs:x\nnames: 2\n", True),
    ],
)
def test_a_list_is_told_from_a_job_file_by_its_name_or_by_a_key(
    name: str, text: str, listed: bool
) -> None:
    assert is_list(name, text.encode()) is listed


def test_yaml_without_a_key_of_a_job_file_is_no_list() -> None:
    (said,) = mistakes("job:\n  - run: x\n  - run: y\n")
    assert said.startswith(
        "1:1: this is no command but YAML, and no job file either: that has jobs:"
    )
    (said,) = mistakes("echo 1\n- run: x\n")
    assert said.startswith("2:1: this is no command but YAML")


def test_a_list_named_as_a_job_file_is_told_how_lists_are_named() -> None:
    (said,) = mistakes("python a.py\n", "commands.yaml")
    assert said.endswith("found 'python a.py'; a list of commands has another ending than .yaml")


@pytest.mark.parametrize(
    ("name", "text"),
    [("run.sh", "echo 1\n"), ("train.py", "import torch\n"), ("x", "#!/bin/bash\necho 1\n")],
)
def test_a_program_is_no_list(name: str, text: str) -> None:
    (said,) = mistakes(text, name)
    assert said.startswith("1:1: this is a")
    assert f"gpulaunch init {name} replaces the masks of a shell script" in said


# ── lines ───────────────────────────────────────────────────────────────────────────────────────


def test_each_line_is_a_command_for_the_shell() -> None:
    text = "# all\n\npython a.py --lr 1e-3 > a.log  # fast\n   \n\t b | c && d\n  # more\nlast"
    assert commands(text) == ["python a.py --lr 1e-3 > a.log  # fast", "b | c && d", "last"]
    (job, *_) = listed(text).jobs
    assert job.shell[:1] == ("bash",)
    assert job.cwd == "/nonexistent"


def test_a_line_that_ends_in_a_backslash_goes_on_in_the_next() -> None:
    text = "python a.py \\\n  --lr 1 \\\n  --seed 0\necho a\\\\\necho b"
    assert commands(text) == ["python a.py \\\n  --lr 1 \\\n  --seed 0", "echo a\\\\", "echo b"]


def test_other_line_ends_and_a_byte_order_mark_are_read_alike() -> None:
    assert commands(b"\xef\xbb\xbfecho a\r\necho b \\\r\n c\rd\r\n") == [
        "echo a",
        "echo b \\\n c",
        "d",
    ]
    assert commands("echo a\u2028b\n") == ["echo a\u2028b"]


def test_a_line_has_the_placeholders_of_a_run_and_other_braces_are_text() -> None:
    (job, other) = listed("train --out {{out}} --card '{{gpu}}'\ndocker ps --format '{{.ID}}'").jobs
    assert shown(job.run) == "train --out {{out}} --card '{{gpu}}'"  # type: ignore[arg-type]
    assert other.run == "docker ps --format '{{.ID}}'"
    assert mistakes("echo 1\n\n  echo {{x}}\n")[0].startswith("3:8: unknown placeholder {{x}}")
    assert commands("echo \\{{x}}") == ["echo {{x}}"]


def test_an_empty_list_is_a_mistake() -> None:
    for text in ("", "\n\n", "# nothing\n"):
        assert mistakes(text) == [
            "1:1: no commands: a list has one in each line that is no comment"
        ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"echo 1\necho a\0b\n", "2:7: a NUL byte; this is to be text, is it binary?"),
        (b"echo caf\xe9\n", "1:9: byte 0xe9 is not UTF-8 (Latin-1 text?); save the file as UTF-8"),
        (b"echo 1\necho \x1b[2J\n", "2:6: control character U+001B; this is to be plain text"),
        ("echo 1\n".encode("utf-16"), " this is UTF-16 text; save it as UTF-8"),
        (b"echo " + b"x" * 131_072, "1:1: 131,077 bytes; Linux takes at most 131,071 in one"),
        (b"x" * (65 << 20), " 68,157,440 bytes; at most 67,108,864 are read"),
    ],
    ids=["NUL", "Latin-1", "control", "UTF-16", "long line", "huge"],
)
def test_what_is_no_text_is_one_clear_mistake(text: bytes, said: str) -> None:
    assert [one[: len(said)] for one in mistakes(text)] == [said]


@settings(max_examples=150)
@given(st.binary(max_size=200) | st.text("'\"\\&|;(){}<>$`# \nabdo=1").map(str.encode))
def test_no_bytes_crash_the_reading_of_a_list(data: bytes) -> None:
    try:
        plan = listed(data)
    except JobFileError:
        return
    assert len({job.name for job in plan.jobs}) == len(plan.jobs) > 0


# ── what a line cannot be ───────────────────────────────────────────────────────────────────────

WRONG = {
    "python a.py &": "the last command runs in the background (&), so that the job is over",
    "nohup python a.py > a.log 2>&1 & # later": "the last command runs in the",
    "python a.py &&": "ends in &&: write \\ behind it",
    "python a.py |": "ends in |: write \\ behind it",
    "python a.py \\": "ends in a backslash, and no line follows",
    "CUDA_VISIBLE_DEVICES=1 python a.py": "CUDA_VISIBLE_DEVICES=1 chooses a card by hand",
    "A='b c' CUDA_VISIBLE_DEVICES=2,3 python a.py": "CUDA_VISIBLE_DEVICES=2,3 chooses",
    "cd work": "changes only the shell that runs it",
    "export A=1 B=2": "changes only the shell",
    "A=1": "changes only the shell",
    "source env.sh && conda activate x": "changes only the shell",
    "module load cuda": "changes only the shell",
    "wait": "there is nothing to wait for",
    "for x in 1 2; do": "a part of something that goes over several lines",
    "done": "a part of something",
    "if true; then": "a part of something",
    "fold() {": "a part of something",
    "} # fold": "a part of something",
    "cat <<EOF": "a here-document goes over several lines",
    'python -c "': 'the quotation mark " is not closed in this line',
    "python -c 'print(1)": "the quotation mark ' is not closed in this line",
    "> out.txt": "> begins no command",
}
RIGHT = [
    "python a.py 2>&1",
    "python a.py & python b.py & wait",
    "python a.py '&'",
    "echo a \\&",
    "CUDA_VISIBLE_DEVICES= python a.py",
    "CUDA_VISIBLE_DEVICES={{gpu_index}} python a.py",
    "A=1 python a.py",
    "cd work && python a.py",
    "source env.sh; python a.py",
    "conda run -n x python a.py",
    "for x in 1 2;do echo $x;done",
    "if true; then echo 1; fi",
    "{ echo 1; echo 2; } > x",
    "(echo 1)",
    "fold() { echo 1; }; fold",
    "cat <<< word",
    "echo $((1 << 2))",
    "echo it\\'s",
    'echo "it\'s"',
    "wait_for_it --port 1",
    "do_all.sh",
]


@pytest.mark.parametrize("line", WRONG)
def test_what_a_line_cannot_be_is_told_at_its_place(line: str) -> None:
    (said,) = mistakes(f"# list\n  {line}\n" if line[-1] != "\\" else f"# list\n  {line}")
    assert said.startswith(f"2:3: {WRONG[line]}")


def test_a_script_that_is_sourced_alone_is_to_be_run() -> None:
    for line in ("source train.sh > log 2>&1", ". ./train.sh"):
        (said,) = mistakes(line)
        assert "is run, not sourced: bash FILE" in said
    assert "sourced" not in mistakes("cd work")[0]


@pytest.mark.parametrize("line", RIGHT)
def test_what_a_line_can_be_is_taken(line: str) -> None:
    assert len(listed(line).jobs) == 1


def test_every_mistake_is_told_in_one_go() -> None:
    said = mistakes("python a.py &\necho {{x}}\nwait\n")
    assert [one.partition(" ")[0] for one in said] == ["1:1:", "2:6:", "3:1:"]


# ── names ───────────────────────────────────────────────────────────────────────────────────────

TWO = "python train.py --lr 1e-3 --seed 0\npython train.py --lr 1e-3 --seed 1\n"


def test_a_name_says_what_the_command_is() -> None:
    text = TWO + "A=1 nohup /opt/bin/fold --out=a/b/c 'inputs/x y.fa' > log\n/\n"
    assert [name.rpartition("-")[0] for name in names(text)] == [
        "train-lr-1e-3-seed-0",
        "train-lr-1e-3-seed-1",
        "fold-out=c-x-y.fa-log",
        "job",
    ]


def test_a_name_is_the_command_s_wherever_it_stands() -> None:
    before = names(TWO)
    after = names("echo first\n" + TWO.replace("\n", "\n# more\n") + "echo last\n")
    assert after[1:3] == before
    assert names(TWO) == ["train-lr-1e-3-seed-0-f2uggsg3", "train-lr-1e-3-seed-1-ley7f4nv"]


def test_commands_of_the_same_words_have_names_of_their_own() -> None:
    made = names("echo a/x\necho b/x\necho 'x'\necho x\n")
    assert len({name.rpartition("-")[0] for name in made}) == 1
    assert len(set(made)) == 4


def test_the_same_command_again_is_numbered() -> None:
    made = names("echo a\necho b\necho a\necho a\n")
    assert made[2:] == [f"{made[0]}-2", f"{made[0]}-3"]


def test_a_long_command_s_name_keeps_its_beginning_and_its_end() -> None:
    (name,) = names(f"python train.py {'--flag ' * 40}--seed 17")
    assert name.startswith("train-flag")
    assert name.rpartition("-")[0].endswith("flag-seed-17")
    assert len(name) < 75
    (name,) = names("echo " + "ä" * 100 + "🧬" * 100)
    assert len(name.encode()) <= 200


@settings(max_examples=150)
@given(st.lists(st.text("ab/.-_ '=\\", min_size=1, max_size=8), min_size=1, max_size=6))
def test_names_are_unique_and_fit_for_files(words: list[str]) -> None:
    lines = "\n".join(f"echo {word}" for word in words)
    try:
        made = names(lines)
    except JobFileError:
        return  # a quotation mark is open
    assert len(set(made)) == len(made)
    assert not any("/" in name or name.startswith((".", "-")) for name in made)


# ── what all jobs have ──────────────────────────────────────────────────────────────────────────


def test_defaults_of_the_command_line_hold_for_each_command() -> None:
    words = ["timeout=2h", "retries={times: 2, on: [gpu_oom]}", "gpus=2", "env={A: 1, B: null}"]
    (job,) = listed("echo 1", defaults=words).jobs
    assert (job.timeout, job.demand.gpus, job.env) == (7200, 2, {"A": "1", "B": None})
    assert job.retry == RetryPolicy(2, frozenset({"gpu_oom"}))


def test_they_stand_over_a_job_file_s_own_defaults_and_below_a_job_s_fields() -> None:
    text = "defaults: {timeout: 1h, env: {A: 1, B: 1}}\njobs: [{run: a}, {run: b, timeout: 3h}]"
    first, second = listed(text, defaults=["timeout=2h", "env={B: 2}"]).jobs
    assert (first.timeout, second.timeout) == (7200, 10800)
    assert first.env == {"A": "1", "B": "2"}


def test_every_wrong_default_is_told() -> None:
    words = ["tmeout=2h", "timeout=x", "gpus", "run=x", "env={A: 1", "env=null", "retries=-1"]
    words.append("env={A: \udcff}")
    with pytest.raises(UsageError) as caught:
        listed("echo 1", defaults=words)
    assert str(caught.value).split("\n") == [
        "--default tmeout=2h: there is no such field; did you mean timeout?",
        "--default timeout=x: expected a duration like 90, 30s, 2h or 1h30m, found 'x'",
        "--default gpus: expected FIELD=VALUE, as in --default timeout=2h",
        "--default run=x: a job's own; it cannot be a default",
        "--default env={A: 1: not YAML: the bracket opened here is never closed",
        "--default env=null: null gives nothing: leave the option out",
        "--default retries=-1: expected how many retries, found '-1'",
        "--default env={A: \udcff}: expected UTF-8",
    ]


def test_a_default_that_is_wrong_for_some_jobs_names_the_first_of_them() -> None:
    text = "jobs:\n- {name: a, run: x}\n- {name: b, run: x, gpus: 2}\n"
    with pytest.raises(JobFileError) as caught:
        listed(text, defaults=["share=true"])
    (told,) = caught.value.mistakes
    assert told.startswith("--default share=true: what a job with gpus: 2 takes is not learned")
    assert told.endswith(" (for jobs[1] in line 3)")


def test_what_such_a_default_asks_for_and_the_cards_cannot_give_is_told_by_it() -> None:
    plan = listed("defaults: {gpus: 2}\njobs: [{name: a, run: x}]", defaults=["gpus=3"])
    (told,) = plan.unplaceable([], 0)
    assert told.text == "--default gpus=3: needs 3 cards, the run has 0 (job a)"


def test_a_default_that_is_wrong_here_is_told_without_a_place_in_the_list() -> None:
    with pytest.raises(JobFileError) as caught:
        listed("echo 1\necho 2\n", defaults=["cwd=gone"])
    assert caught.value.mistakes == ("--default cwd=gone: /nonexistent/gone does not exist",)


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def test_commands_of_a_file_start_where_it_is_read_and_those_of_a_job_file_at_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lists").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, text, cwd in (
        ("commands.txt", "echo 1", tmp_path),
        ("jobs.yaml", "jobs: [{run: echo 1}]", tmp_path / "lists"),
    ):
        file = Path("lists", name)
        file.write_text(text)
        (job,) = load(file, Surroundings(ENVIRON)).jobs
        assert job.cwd == str(cwd)
    (job,) = load(Path("lists/commands.txt"), Surroundings(ENVIRON, cwd=Path("/usr"))).jobs
    assert job.cwd == "/usr"


def test_a_directory_a_fifo_and_a_binary_file_are_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.txt")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)))
    said: Mapping[str, str] = {
        "fifo.txt": "not a regular file; expected",
        ".": "a directory; expected",
        "binary.txt": "1:1: a NUL byte",
        "gone.txt": "no such file; expected a job file (YAML text), or a list of commands",
    }
    for name, words in said.items():
        with pytest.raises(UsageError) as caught:
            load(tmp_path / name, Surroundings(ENVIRON))
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


class Whole:
    """What counts of a list that grows: only what was there at `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def counts(self, path: str) -> bool:
        raise AssertionError(path)

    def whole(self, path: str, size: int) -> bool:
        return size <= self.size


def test_of_a_list_that_grows_the_lines_that_are_whole_are_jobs(tmp_path: Path) -> None:
    file = tmp_path / "commands.txt"
    for text, still, expected in (
        ("echo 1\necho 2", False, ["echo 1"]),
        ("echo 1\necho 2", True, ["echo 1", "echo 2"]),
        ("echo 1\necho 2 \\\n", False, ["echo 1"]),
        ("echo 1\necho 2 \\\n 3", False, ["echo 1"]),
        ("echo 1\necho 2 \\\n 3\n", False, ["echo 1", "echo 2 \\\n 3"]),
        ("ec", False, []),
        ("", True, []),
    ):
        plan = followed(file, text.encode(), still)
        assert [job.run for job in plan.jobs] == expected, text
        assert [source.pattern for source in plan.sources] == [str(file)]


def followed(file: Path, data: bytes, still: bool = False) -> Plan:
    file.write_bytes(data)
    counting = Whole(len(data) if still else 0)
    return load(file, Surroundings(ENVIRON, following=Following(counting)))


def test_a_line_may_be_half_written_within_a_character(tmp_path: Path) -> None:
    file = tmp_path / "commands.txt"
    (job,) = followed(file, "echo 1\necho é".encode()[:-1]).jobs
    assert job.run == "echo 1"
    with pytest.raises(JobFileError, match=r"commands\.txt:2:6: byte 0xc3 is not UTF-8"):
        followed(file, "echo 1\necho é".encode()[:-1], still=True)


def test_the_run_keeps_the_lines_that_were_read_and_no_half_command(tmp_path: Path) -> None:
    plan = followed(tmp_path / "commands.txt", b"echo 1\nrm -r old/scra")
    assert plan.text == b"echo 1\n"
