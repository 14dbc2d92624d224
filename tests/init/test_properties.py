"""Random scripts: what comes of them makes the same calls in the same order, or nothing comes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from gpulaunch.init import Unfit, convert
from tests.init.stage import GPULAUNCH, Stage, with_wait

ROOT = Path(__file__).parents[2]
MASK = "CUDA_VISIBLE_DEVICES"
MASKS = ["0", "1", "0,1", '"2"', "", "$g", "$((n % 2))", "${G[$k]}", "$k", "$L"]
WORDS = ["", " --k $k", ' "$f"', " $f", " '{{x}}'", " in/*.fasta", " $OUT/$k/x", ' "a  $k"', " $n"]
ENDS = ["", "", " &", " &", " > out/log 2>&1", " | tee out/log", " > out/$k.txt &"]
BEFORE = ["", "", "", "nohup ", "timeout 1h ", "A=$k ", "env B=1 "]
BETWEEN = [
    "wait",
    "n=$((n + 1))",
    "((n++))",
    "k=1",
    "g=$((n % 2))",
    "mkdir -p out/new",
    "echo $n",
    f"export {MASK}=1",
    f"unset {MASK}",
    "cd in; cd ..",
    "python plain.py MARK",
    "set -e",
    "L=0,1",
    "[ -e in ] && wait",
]
SIMPLE = ["wait", "n=$((n + 1))", "k=1", "mkdir -p out/new", "echo $n", "set -e", "g=$((n % 2))"]
FRAMES = [
    "{}",
    "({}\n)",
    "({}\n) &",
    "{{ {}\n}} &",
    "for k in 0 1; do\n{}\ndone",
    "for g in {{0..1}}; do\n{}\ndone &",
    "for f in in/*.fasta; do\n{}\ndone",
    "for ((k=0; k<2; k++)); do\n{}\ndone",
    "if [ -e in ]; then\n{}\nfi",
    "if [ -e nowhere ]; then\n:\nelse\n{}\nfi",
    "while read -r f; do\n{}\ndone < list.txt",
    "run() {{\nlocal k=$1\n{}\n}}\nrun 0 x &\nrun 1 y\n",
    "x=$({}\n)",
]
LOOPS = ["{}", "for k in 0 1; do\n{}\ndone", "for f in in/*.fasta; do\n{}\ndone"]
START = "OUT=out\nn=0\nk=0\ng=0\nf=in/a.fasta\nL=0\nG=(0 1)\n"


@st.composite
def scripts(draw: st.DrawFn, frames: list[str], between: list[str], tail: list[str]) -> str:
    """A script whose calls have a mark that no other has: m0, m1 ..."""
    lines, count = [START], 0
    for _ in range(draw(st.integers(1, 3))):
        inside = []
        for _ in range(draw(st.integers(1, 3))):
            if draw(st.integers(0, 2)):
                mask = draw(st.sampled_from(MASKS))
                before, words = draw(st.sampled_from(tail)), draw(st.sampled_from(WORDS))
                end = draw(st.sampled_from(ENDS))
                inside.append(f"{MASK}={mask} {before}python x.py MARK{words}{end}")
            else:
                inside.append(draw(st.sampled_from(between)))
        body = "\n".join(inside)
        while "MARK" in body:
            body = body.replace("MARK", f"m{count}", 1)
            count += 1
        frame = draw(st.sampled_from(frames)).replace("run", f"run{len(lines)}")
        lines.append(frame.format(body))
    return "\n".join(lines) + "\n"


def compare(script: str, base: Path, standin: Path, kind: str, fails: str = "") -> None:
    try:
        made = convert(script, "run.sh", (), kind)
    except Unfit as unfit:
        event(f"refused: {unfit.why[-40:]}")
        return
    event("made")
    for number in range(1000):
        if not (base / f"{number}").exists():
            break
    at = base / f"{number}"
    with Stage(at / "a", standin, fails) as stage, Stage(at / "b", standin, fails) as result:
        stage.lay("run.sh", with_wait(script))
        steps, status = stage.steps(["bash", "run.sh"])
        if made.is_script:
            result.lay("bin/gpulaunch", GPULAUNCH, 0o755)
            result.lay("run.sh", with_wait(made.text))
            assert result.follow(["bash", "run.sh"], steps) == status, made.text
        else:
            result.lay("jobs.yaml", made.text)
            run = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.init import mini"
            argv = [sys.executable, "-c", f"{run}; mini.main('jobs.yaml')"]
            assert result.follow(argv, steps) == 0, made.text


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


SLOWLY = settings(
    max_examples=int(os.environ.get("GPULAUNCH_TEST_SCRIPTS", "25")),
    deadline=None,
    phases=[Phase.generate, Phase.explicit, Phase.reuse],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SLOWLY
@given(scripts(FRAMES, BETWEEN, BEFORE), st.sampled_from(["", "m1"]))
def test_a_new_script_makes_the_same_calls(
    base: Path, standin: Path, script: str, fails: str
) -> None:
    compare(script, base, standin, "script", fails)


@SLOWLY
@given(scripts(LOOPS, SIMPLE, [""]), st.sampled_from(["", "m1"]))
def test_a_job_file_makes_the_same_calls(
    base: Path, standin: Path, script: str, fails: str
) -> None:
    compare(script, base, standin, "job file", fails)


@settings(max_examples=300)
@given(st.text(st.sampled_from("ab $'\"\\\n&;|(){}<>=#*!`[]-0,\r\té")))
def test_any_text_at_all_is_read_or_refused(text: str) -> None:
    for kind in ("", "script", "job file"):
        try:
            made = convert(f"{MASK}=0 {text}", "run.sh", (), kind)
        except Unfit:
            continue
        assert made.text
