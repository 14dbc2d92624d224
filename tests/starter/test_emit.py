"""Any text comes out as YAML that reads back as exactly itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.core.template import render
from gpulaunch.jobfile import Surroundings, load_text
from gpulaunch.starter.emit import Unwritable, escaped, job_file, scalar
from gpulaunch.starter.entry import ForeachLoop, StarterEntry, StarterRemark

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
NASTY = [
    "",
    "null",
    "~",
    "- a",
    "a: b",
    "a #b",
    "'",
    '"',
    " a",
    "a ",
    "a\n",
    "\n",
    "\ta\n b",
    "a\n\n  b",
    "a\r\nb",
    "a\u2028b\x85c\ufeff",
    "&a *b !c |d >e %f @g `h`",
    "\\{{x}}",
    "---",
    "... a",
    "<<",
    "=",
    "\x07\x7f",
    "\U0001f600",
    "a:",
    "#",
    "{a}",
    "[a]",
    "? a",
]


def read_back(text: str, indent: int) -> object:
    document = " " * indent + "key: " + scalar(text, indent) + "\n"
    return yaml.load(document, Loader=yaml.BaseLoader)["key"]


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("indent", [0, 4])
def test_a_nasty_text_reads_back_as_itself(text: str, indent: int) -> None:
    assert read_back(text, indent) == text


@given(TEXT, st.sampled_from([0, 4]))
def test_any_text_reads_back_as_itself(text: str, indent: int) -> None:
    assert read_back(text, indent) == text


@given(text=st.text(st.sampled_from("{}\\ abx_-1\n'\"$")))
def test_a_command_with_braces_reaches_the_shell_as_it_is(text: str) -> None:
    run = f"echo {text}!"
    try:
        entry = StarterEntry("a", escaped(run))
    except Unwritable:
        return
    data = job_file("x.sh", [entry], []).encode()
    (job,) = load_text(data, Surroundings({}), name="jobs.yaml", base=Path("/")).jobs
    assert not isinstance(job.run, tuple)
    assert render(job.run, {}) == run


def test_a_nul_byte_and_a_lone_surrogate_are_refused() -> None:
    with pytest.raises(Unwritable, match="NUL"):
        escaped("a\0")
    with pytest.raises(Unwritable, match="surrogate"):
        scalar("\ud800")


@given(st.lists(TEXT.filter(lambda text: "{{" not in text), min_size=1, max_size=4, unique=True))
def test_any_loop_values_reach_the_jobs(values: list[str]) -> None:
    entry = StarterEntry(
        "a-{{index}}", "echo {{item}}", loops=(ForeachLoop("x", "values", tuple(values)),)
    )
    data = job_file("x.sh", [entry], []).encode()
    jobs = load_text(data, Surroundings({}), name="jobs.yaml", base=Path("/")).jobs
    assert [job.params["item"] for job in jobs] == values


@given(TEXT, TEXT)
def test_remarks_and_comments_never_break_the_file(why: str, text: str) -> None:
    data = job_file(
        why, [StarterEntry("a", "true", comments=(text,))], [StarterRemark(3, text, why)]
    ).encode()
    (job,) = load_text(data, Surroundings({}), name="jobs.yaml", base=Path("/")).jobs
    assert job.run == "true"
