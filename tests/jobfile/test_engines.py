"""`engine:`: what an engine is told about jobs, and which options of sbatch are gpulaunch's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.jobfile import schedulers
from gpulaunch.jobfile.mistakes import FieldError
from tests.jobfile.helpers import job_of, jobs_of, mistakes_of


def told(fields: str) -> Mapping[str, tuple[str, ...]]:
    """What Slurm is told of a job whose `engine: {slurm: {...}}` this is."""
    return job_of(f"run: x, engine: {{slurm: {{{fields}}}}}").engine["slurm"]


def said(fields: str) -> list[str]:
    """What is wrong with the settings, without the way to them."""
    lines = mistakes_of(f"jobs: [{{run: x, engine: {{slurm: {{{fields}}}}}}}]")
    return [line.split(": ", 1)[1].removeprefix("jobs[0].engine.slurm.") for line in lines]


def test_each_setting_is_words_by_key() -> None:
    assert told("partition: 'gpu,fat', account: lab, qos: long, gres: a100, extra: -C x") == {
        "partition": ("gpu,fat",),
        "account": ("lab",),
        "qos": ("long",),
        "gres": ("a100",),
        "extra": ("--constraint=x",),
    }
    assert job_of("run: x").engine == {}


def test_a_type_of_card_may_be_spelt_as_slurm_does_and_says_no_number() -> None:
    assert told("gres: 'gpu:a100'") == {"gres": ("a100",)}
    for wrong in ("gpu:a100:2", "a100:2", "gpu", "2", "a b", "gpu=2"):
        (line,) = said(f"gres: '{wrong}'")
        assert line.startswith("gres: expected a type of card like a100")


# ── What is nearer to the job wins ──────────────────────────────────────────────────────────────

LEVELS = """
engine: {slurm: {partition: top, account: top, qos: top}}
defaults:
  engine: {slurm: {account: defaults, gres: a40, extra: [--mem=1G]}}
jobs:
  - {name: none, run: x}
  - {name: some, run: x, engine: {slurm: {gres: h200, qos: null, extra: []}}}
  - {name: null, run: x, engine: null}
  - {name: "of-{{n}}", run: x, matrix: {n: [1, 2]}, engine: {slurm: {extra: ["--mem={{n}}G"]}}}
"""


def test_a_jobs_own_wins_over_the_defaults_and_those_over_the_files_key_by_key() -> None:
    none, some, null, one, two = jobs_of(LEVELS)
    assert none.engine["slurm"] == {
        "partition": ("top",),
        "account": ("defaults",),
        "qos": ("top",),
        "gres": ("a40",),
        "extra": ("--mem=1G",),
    }
    assert some.engine["slurm"] == {
        "partition": ("top",),
        "account": ("defaults",),
        "gres": ("h200",),
    }
    assert null.engine == {}
    assert one.engine["slurm"] == {**none.engine["slurm"], "extra": ("--mem=1G",)}
    assert two.engine["slurm"]["extra"] == ("--mem=2G",)
    assert two.engine["slurm"]["partition"] == ("top",)


def test_the_files_own_holds_where_there_are_no_defaults() -> None:
    (job,) = jobs_of("engine: {slurm: {partition: gpu}}\njobs: [{run: x}]")
    assert job.engine == {"slurm": {"partition": ("gpu",)}}


def test_equal_settings_are_held_once() -> None:
    one, two = jobs_of(
        "jobs: [{run: x, matrix: {p: [q], a: [1, 2]}, engine: {slurm: {partition: '{{p}}'}}}]"
    )
    assert one.engine == {"slurm": {"partition": ("q",)}}
    assert one.engine is two.engine


def test_it_is_no_part_of_what_would_be_run() -> None:
    plain, told_more = job_of("run: x"), job_of("run: x, engine: {slurm: {partition: gpu}}")
    assert plain.digest == told_more.digest


# ── Placeholders ────────────────────────────────────────────────────────────────────────────────


def test_a_column_fills_settings(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,mem,card\na,64,a100\nb,8,gpu:t4\n")
    a, b = jobs_of(
        """
        jobs:
          - run: x
            foreach: {csv: t.csv}
            engine: {slurm: {gres: "{{card}}", extra: ["--mem", "{{mem}}G", --exclusive]}}
        """,
        tmp_path,
    )
    assert a.engine["slurm"] == {"gres": ("a100",), "extra": ("--mem=64G", "--exclusive")}
    assert b.engine["slurm"] == {"gres": ("t4",), "extra": ("--mem=8G", "--exclusive")}


def test_a_value_stays_one_word_and_never_becomes_an_option() -> None:
    (job,) = jobs_of(
        """
        jobs:
          - run: x
            foreach: {values: ["-o /tmp/x --wrap=evil"]}
            name: a
            engine: {slurm: {extra: [--comment, "{{item}}"]}}
        """
    )
    assert job.engine["slurm"]["extra"] == ("--comment=-o /tmp/x --wrap=evil",)


def test_placeholders_that_cannot_be_filled_are_said() -> None:
    assert mistakes_of(
        """\
        engine: {slurm: {partition: "{{p}}"}}
        jobs:
          - {run: x, engine: {slurm: {extra: "--mem={{n}}G"}}}
          - {run: x, engine: {slurm: {extra: ["--{{n}}=1"]}}}
          - {run: x, engine: {slurm: {partition: "{{p}}"}}}
          - {run: x, engine: {slurm: {partition: "{{gpu}}"}}}
        """
    ) == [
        "1:29: engine.slurm.partition: placeholders are filled in a job or in defaults:, not here",
        "3:38: jobs[0].engine.slurm.extra: with a placeholder, write options as a list:"
        " [--mem={{mem}}G]",
        "4:39: jobs[1].engine.slurm.extra[0]: expected an option of sbatch like"
        " --constraint=a100, found '--{{n}}=1'",
        r"5:22: jobs[2].engine: unknown placeholder {{p}} (here: job; \{{p}} is the text itself)",
        "6:22: jobs[3].engine: {{gpu}} is known only when the job starts: it works in run, env,"
        " outputs and service.ready",
    ]


# ── Mistakes ────────────────────────────────────────────────────────────────────────────────────


def test_every_mistake_is_said_at_its_place() -> None:
    assert mistakes_of(
        """\
        engine: slurm
        defaults: {engine: {slrum: {}, slurm: {acount: x}}}
        jobs:
          - run: x
            engine:
              slurm:
                partition: [a]
                qos: ''
                extra: [--mem=4G, x, --array=3, -o, --, ":", "--mem 3"]
        """
    ) == [
        "1:9: engine: expected {slurm: {partition: gpu, account: lab}}, found 'slurm'; which engine"
        " runs the list is said with --engine",
        "2:21: defaults.engine.slrum: unknown engine; did you mean slurm? (known: slurm)",
        "2:40: defaults.engine.slurm.acount: unknown key; did you mean account? (known: account,"
        " extra, gres, partition, qos)",
        "7:20: jobs[0].engine.slurm.partition: expected one value, found a list",
        "9:27: jobs[0].engine.slurm.extra[1]: expected an option of sbatch like --constraint=a100,"
        " found 'x'",
        "9:30: jobs[0].engine.slurm.extra[2]: --array cannot be set here: lists go as arrays by"
        " themselves; --gpus N or limits: say how many at once",
        "9:41: jobs[0].engine.slurm.extra[3]: --output cannot be set here: a job's log is in the"
        " run directory",
        "9:45: jobs[0].engine.slurm.extra[4]: expected an option of sbatch like --constraint=a100,"
        " found '--'",
        "9:49: jobs[0].engine.slurm.extra[5]: expected an option of sbatch like --constraint=a100,"
        " found ':'",
        "9:54: jobs[0].engine.slurm.extra[6]: expected an option of sbatch like --constraint=a100,"
        " found '--mem 3'",
    ]


def test_an_empty_name_is_no_name() -> None:
    assert said("qos: ''") == ["qos: expected its name, found ''"]
    assert said(r'account: "a\nb"') == [r"account: expected its name, found 'a\nb'"]


# ── Options of sbatch ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "words"),
    {
        "": [],
        "--mem=64G": ["--mem=64G"],
        "--mem 64G": ["--mem=64G"],
        "-C a100 -x 'n[1,2]'": ["--constraint=a100", "--exclude=n[1,2]"],
        "-Ca100": ["--constraint=a100"],
        "-Hk -p gpu": ["--hold", "--no-kill", "--partition=gpu"],
        "--exclusive --nice 100": ["--exclusive", "--nice=100"],
        "--comment='two words'": ["--comment=two words"],
        "--exclusive user": ["--exclusive=user"],
        "--exclusive=user --hold": ["--exclusive=user", "--hold"],
        "--gres=lscratch:100 --gpu-bind=none": ["--gres=lscratch:100", "--gpu-bind=none"],
    }.items(),
)
def test_each_option_is_one_word(text: str, words: list[str]) -> None:
    assert schedulers.options(schedulers.split(text)) == words


@pytest.mark.parametrize(
    ("text", "ours"),
    {
        "--array=0-3": "array",
        "--arr=0-3": "array",
        "-a 0-3": "array",
        "-Ha0-3": "array",
        "-G2": "gpus",
        "--gpus-per-node=2": "gpus-per-node",
        "-o /dev/null": "output",
        "--wrap 'rm -r x'": "wrap",
        "-t 1:00": "time",
        "--dependency=singleton": "dependency",
        "--export=ALL": "export",
        "--requeue": "requeue",
        "--no-requeue": "no-requeue",
        "-W": "wait",
        "-D /tmp": "chdir",
        "-c 4": "cpus-per-task",
        "-J mine": "job-name",
        "-N 2": "nodes",
        "--test-only": "test-only",
        "-M other": "clusters",
    }.items(),
)
def test_what_gpulaunch_sets_itself_is_refused_however_it_is_spelt(text: str, ours: str) -> None:
    with pytest.raises(FieldError, match=f"^--{ours} cannot be set here: "):
        schedulers.options(schedulers.split(text))


@pytest.mark.parametrize("text", ["--mem", "--comment --exclusive", "-p", "-Hp", "-H --mem"])
def test_an_option_without_its_value_never_takes_the_next_word_for_it(text: str) -> None:
    with pytest.raises(FieldError, match=r"expected its value as well, --[a-z]+=\.\.\., found"):
        schedulers.options(schedulers.split(text))


WORDS = st.one_of(
    st.sampled_from(
        [f"--{name}" for name in (*schedulers.OURS, *schedulers.SHORT.values(), "mem", "x")]
    ),
    st.sampled_from([f"-{letter}" for letter in schedulers.SHORT]),
    st.text("-=:abGHpo ", max_size=5),
)


@given(st.lists(WORDS, max_size=5))
def test_what_comes_out_is_options_alone_and_none_of_ours(words: list[str]) -> None:
    try:
        found = schedulers.options(words)
    except FieldError:
        return
    assert all(word.startswith("--") for word in found)
    assert not {word[2:].partition("=")[0] for word in found} & set(schedulers.OURS)
    assert schedulers.options(found) == found


@pytest.mark.parametrize(
    "text",
    ["script.sh", "--mem=4G script.sh", "--", "-", "-=3", "-Z", ":", "--mem=4G :", "-H x", "--A=x"],
)
def test_what_is_no_option_is_never_handed_on(text: str) -> None:
    with pytest.raises(FieldError, match="expected an option of sbatch"):
        schedulers.options(schedulers.split(text))


def test_text_that_no_shell_could_split_is_refused() -> None:
    with pytest.raises(FieldError, match="no closing quotation"):
        schedulers.split("--comment='x")


@pytest.mark.parametrize(
    "option",
    ["--gres=gpu:2", "--gres=lscratch:1,gpu", "--gres=gpu:a100:1", "--tres-per-node=gres/gpu:2"],
)
def test_cards_are_asked_for_by_gpus_alone(option: str) -> None:
    with pytest.raises(FieldError, match="cannot ask for cards"):
        schedulers.check(option)
    assert said(f"extra: ['{option}']")
    schedulers.check("--gres=gpumem:3")


def test_a_line_end_is_in_no_option() -> None:
    with pytest.raises(FieldError, match="on one line"):
        schedulers.check("--comment=a\nb")
