"""Whatever the script: the job file loads, and no command is lost, doubled or quietly changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpulaunch.core.model import Job
from gpulaunch.jobfile import Surroundings, load_text
from gpulaunch.starter import translate

MASKS = ["CUDA_VISIBLE_DEVICES=0 ", "CUDA_VISIBLE_DEVICES=0,1 ", "CUDA_VISIBLE_DEVICES= ", ""]
ENDS = ["", " &", " > run.log 2>&1 &", " > table.tsv", " | sort", "; sleep 1", " && true"]
WORDS = ["python MARK.py", "MARK $X $f", "python -m MARK '{{x}}'", "MARK"]
STEPS = ["run", "run &", "(run) &", "wait", "wait $LAST", "loop", "loop &"]
BETWEEN = [
    "wait",
    "sleep 3",
    "# a comment",
    "echo go",
    "export CUDA_VISIBLE_DEVICES=1",
    "export X=$(date)",
    "Y=3",
    "set -e",
    "unset CUDA_VISIBLE_DEVICES",
    "cd ..",
    "source venv/bin/activate",
]
FRAMES = [
    "{}",
    "({}) &",
    "{{ {}\n}} &",
    "for f in in/*.fasta; do\n{}\ndone",
    "for i in 0 1; do\n{}\ndone &",
    "if [ -e x ]; then\n{}\nfi",
    "while read -r l; do\n{}\ndone < list.txt",
]


@st.composite
def commands(draw: st.DrawFn) -> str:
    """One command with a mark that no other has, filled in by `scripts`."""
    mask, end = draw(st.sampled_from(MASKS)), draw(st.sampled_from(ENDS))
    prefix = draw(st.sampled_from(["", "nohup ", "env "]))
    words = draw(
        st.sampled_from(["python MARK.py", "MARK $X $f", "python -m MARK '{{x}}'", "MARK"])
    )
    return f"{mask}{prefix}{words}{end}"


@st.composite
def scripts(draw: st.DrawFn) -> tuple[str, int]:
    """A script and how many marked commands it has: mark0mark, mark1mark, ..."""
    lines, count = [], 0
    for _ in range(draw(st.integers(1, 5))):
        inside = draw(st.lists(st.one_of(commands(), st.sampled_from(BETWEEN)), min_size=1))
        body = "\n".join(inside[:4])
        while "MARK" in body:
            body = body.replace("MARK", f"mark{count}mark", 1)
            count += 1
        lines.append(draw(st.sampled_from(FRAMES)).format(body))
    return "\n".join(lines) + "\n", count


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that has what the scripts mention, as has each above it (`cd ..`)."""
    here = tmp_path_factory.mktemp("scripts")
    for _ in range(12):
        here = here / "deeper"
        (here / "in").mkdir(parents=True)
        (here / "in/a.fasta").touch()
        (here / "venv/bin").mkdir(parents=True)
        (here / "venv/bin/python").touch()
        (here / "list.txt").write_text("x\n")
    return here


def jobs_in(text: str) -> list[dict[str, str]]:
    """The entries of a job file as they are written; none of an empty one."""
    return yaml.load(text, Loader=yaml.BaseLoader)["jobs"] if text else []


def loaded(text: str, base: Path) -> dict[str, Job]:
    if not text:
        return {}
    plan = load_text(text.encode(), Surroundings({}), name="jobs.yaml", base=base)
    return {job.name: job for job in plan.jobs}


@settings(max_examples=150)
@given(scripts())
def test_every_command_is_in_the_job_list_or_told_exactly_once(given: tuple[str, int]) -> None:
    script, count = given
    translation = translate(script, "run.sh")
    jobs = jobs_in(translation.yaml_text)
    told = "\n".join([job["run"] for job in jobs] + [one.text for one in translation.untranslated])
    assert not any("CUDA_VISIBLE_DEVICES=" in job["run"] for job in jobs)
    for number in range(count):
        assert told.count(f"mark{number}mark") == 1, f"{script}\n{translation.yaml_text}"


@settings(max_examples=150)
@given(scripts())
@example(("if [ -e x ]; then\npython mark0mark.py &\nfi\n", 1))
def test_every_job_file_loads_where_the_scripts_files_are(
    base: Path, given: tuple[str, int]
) -> None:
    loaded(translate(given[0], "run.sh").yaml_text, base)


@settings(max_examples=200)
@given(st.text(st.sampled_from("ab $'\"\\\n&;|(){}<>=#*!`[]-0,")))
def test_any_text_at_all_is_translated_to_something_that_reads_as_yaml(script: str) -> None:
    translation = translate("CUDA_VISIBLE_DEVICES=0 " + script, "run.sh")
    assert jobs_in(translation.yaml_text) or translation.yaml_text == ""


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(["run", "run &", "(run) &", "wait", "wait $LAST", "loop", "loop &"]))
)
def test_a_job_waits_for_exactly_what_had_ended_in_the_script(base: Path, steps: list[str]) -> None:
    lines, ended, running = [], set[str](), list[str]()
    expected: dict[str, set[str]] = {}
    for number, step in enumerate(steps):
        name = f"j{number}"
        if step == "wait":
            lines.append("wait")
            ended |= set(running)
        elif step == "wait $LAST":
            lines.append("wait $!" if running else "true")
            ended |= set(running[-1:])
        else:
            expected[name] = set(ended)
            command = f"CUDA_VISIBLE_DEVICES=0 python {name}.py"
            loop = f"for i in 0 1; do {command} $i; done"
            lines.append(step.replace("run", command).replace("loop", loop))
            if step.endswith("&"):
                running.append(name)
            else:
                ended.add(name)
    text = translate("\n".join(lines) + "\n", "run.sh").yaml_text
    jobs = loaded(text, base)

    def before(name: str) -> set[str]:
        direct = {*jobs[name].after, *jobs[name].needs}
        return direct.union(*(before(one) for one in direct))

    for name in jobs:
        assert {one.split("-")[0] for one in before(name)} == expected[name.split("-")[0]]
