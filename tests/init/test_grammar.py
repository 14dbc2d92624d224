"""Which scripts become job files, in which order the jobs run, and what sends a script on."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.core.model import Job
from gpulaunch.core.template import render
from gpulaunch.init import Unfit
from gpulaunch.init.grammar import MAX_ENTRIES, GrammarReader
from gpulaunch.init.script import Script
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text

M = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name in ("in/a.fa", "in/b c.fa"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


def text_of(script: str, environ: tuple[str, ...] = ()) -> str:
    return GrammarReader(Script(script.replace("MASK", M)), environ).read("run.sh")


def jobs_of(script: str, base: Path) -> dict[str, Job]:
    data = text_of(script).encode()
    plan = load_text(data, Surroundings({}), name="jobs.yaml", base=base)
    return {job.name: job for job in plan.jobs}


def run_of(job: Job) -> str:
    assert not isinstance(job.run, tuple)
    return render(job.run, {})


def test_a_job_comes_after_what_had_ended(base: Path) -> None:
    jobs = jobs_of("MASK=0 a &\nMASK=1 b\nMASK=0 c &\nwait\nMASK=0 d\nMASK=0 e &\n", base)
    after = {name: job.after for name, job in jobs.items()}
    assert after == {"a": (), "b": (), "c": ("b",), "d": ("a", "c"), "e": ("d",)}


def test_under_set_e_the_rest_needs_what_ran_in_the_foreground(base: Path) -> None:
    jobs = jobs_of("set -eu\nMASK=0 a\nMASK=0 b &\nMASK=1 c\nwait\nMASK=0 d\n", base)
    waits = {name: (job.needs, job.after) for name, job in jobs.items()}
    assert waits == {
        "a": ((), ()),
        "b": (("a",), ()),
        "c": (("a",), ()),
        "d": (("c",), ("b",)),
    }


def test_a_loop_over_files_is_one_entry_and_what_follows_waits_for_all(base: Path) -> None:
    jobs = jobs_of(
        'D=in\nfor f in $D/*.fa; do MASK=0 x "$f" $f ${f##*/} & done\nwait\nMASK=0 y', base
    )
    assert list(jobs) == ["x-a", "x-b c", "y"]
    assert set(jobs["y"].after) == {"x-a", "x-b c"}
    assert run_of(jobs["x-a"]) == "f='in/a.fa'\nx \"in/a.fa\" $f ${f##*/}"
    assert run_of(jobs["x-b c"]) == "f='in/b c.fa'\nx \"in/b c.fa\" $f ${f##*/}"


@pytest.mark.parametrize(
    ("command", "run"),
    [
        ("x $a", "x 1"),
        ('x "$b"', 'x "p q"'),
        ("x $b", "x p q"),
        ("x '$a'", "x '$a'"),
        ("x $((a + 1))", "x 2"),
        ("x ${L[1]}", "x v"),
        ("x $OUT/$a/x", "x out/1/x"),
        ('x "$s"', 'x "a\\"b\\$c"'),
        ("x > $OUT/log 2>&1 < in/a.fa", "x > out/log 2>&1 < in/a.fa"),
        ("x $HOME ~ *.py {1,2}", "x $HOME ~ *.py {1,2}"),
        ("A=$a x", "A=1 x"),
        ("timeout 2h nice x", "timeout 2h nice x"),
        ("x {{y}}", "x {{y}}"),
    ],
)
def test_known_values_stand_in_the_command(command: str, run: str, base: Path) -> None:
    script = f"a=1\nb='p q'\nL=(u v)\nOUT=out\ns='a\"b$c'\nMASK=0 {command}\n"
    (job,) = jobs_of(script, base).values()
    assert run_of(job) == run


@pytest.mark.parametrize(
    "line",
    [
        "if true; then MASK=0 b; fi",
        "f() { MASK=0 b; }",
        "MASK=0 b | tee x",
        "MASK=0 b && MASK=0 c",
        "(MASK=0 b) &",
        "nohup x",
        "MASK=0 nohup b",
        "MASK=0 b $(date)",
        "MASK=0 b `date`",
        "MASK=0 b $1",
        "MASK=0 b $u",
        "MASK=0 b $!",
        "MASK=0 b $x>y",
        "A=$p MASK=0 b",
        "MASK=0 b > $p",
        "MASK=0 b ${x:=1}",
        "MASK=0 b $((x++))",
        "MASK=$u b",
        "MASK=0 echo",
        "MASK=0 tmux new x",
        "MASK=0 $u",
        "b",
        "python b.py",
        "cd in",
        "sleep 1",
        "wait $!",
        "wait &",
        "export MASK=0",
        "MASK=0",
        "IFS=,",
        "PATH=/x",
        "TAKEN=1",
        "for TAKEN in 1 2; do MASK=0 b; done",
        "for f in in/*.fa; do MASK=0 b $f; done",
        "for f in in/*.fa; do MASK=0 b $f $n & n=$((n+1)); done",
        "for f in in/**; do MASK=0 b & done",
        "for f in in/*.fa; do for g in in/*.fa; do MASK=0 b & done; done",
        "for f in $(ls); do MASK=0 b & done",
        "for f in 1 2; do MASK=0 b; done &",
        "for ((i=0; i<2; i++)); do MASK=0 b; done",
        "while true; do MASK=0 b; done",
        "echo x > y",
        "MASK=0 b <<EOF\nx\nEOF",
        "set -e; ((x++))",
        "mkdir x",
        "MASK=0 b 'a\x07'",
        "MASK=0 b \\{{item}}",
    ],
)
def test_what_is_more_than_a_job_file_can_say_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(Unfit) as refused:
        text_of(f"x=1\np='p q'\nn=0\nMASK=0 a\n{line}\n", ("TAKEN",))
    assert refused.value.line >= 5
    assert refused.value.why


def test_without_a_card_there_is_nothing_to_do() -> None:
    with pytest.raises(Unfit, match="no command in it chooses a card"):
        text_of("MASK= a\n")


def test_a_list_that_would_be_too_long_stays_a_script() -> None:
    with pytest.raises(Unfit, match="more than"):
        text_of("for i in {1..40}; do for j in {1..40}; do MASK=0 a $i $j & done; done\n")
    assert text_of(f"for i in $(seq {MAX_ENTRIES // 4}); do MASK=0 a $i & done\n")


def test_an_exported_variable_reaches_the_jobs_that_follow(base: Path) -> None:
    jobs = jobs_of("MASK=0 a\nexport X='1 2'\nMASK=0 b $X\nX=3\nMASK=0 c\n", base)
    assert [job.env.get("X") for job in jobs.values()] == [None, "1 2", "3"]
    assert run_of(jobs["b"]) == "b $X"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("in/*.fa", "x-{{stem}}"),
        ("*.fa", "x-{{stem}}"),
        ("in/*", "x-{{index}}"),
        ("*/a.fa", "x-{{index}}"),
        ("in/a.*", "x-{{index}}"),
    ],
)
def test_jobs_of_a_loop_over_files_have_distinct_names(pattern: str, name: str, base: Path) -> None:
    script = f'for f in {pattern}; do MASK=0 x "$f" & done\n'
    assert f"name: {name}\n" in text_of(script).replace("'", "")
    (base / "a.fa").touch()
    assert len(jobs_of(script, base)) == len(list(base.glob(pattern)))


def test_names_say_what_runs_and_are_distinct(base: Path) -> None:
    script = "MASK=0 python a/train-x.py &\nMASK=0 python train_x.py &\nMASK=0 ./fold.sh &\n"
    assert list(jobs_of(script, base)) == ["train_x", "train_x2", "fold"]
