"""Any text comes out as YAML that reads back as exactly itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulaunch.core.model import Job
from gpulaunch.core.template import render
from gpulaunch.init.grammar import InitEntry, escaped, job_file
from gpulaunch.init.script import Unfit
from gpulaunch.jobfile.file_keys import Surroundings
from gpulaunch.jobfile.load import load_text

NASTY = ["null", "~", "- a", "a: b", "a #b", "'", '"', " a", "a ", "&a *b", "a:", "#", "{a}", "? a"]
NASTY += ["{{x}}", "---", "<<", "=", "é \U0001f600", "a\n\n  b", "a \\\n  'b  \n c'", "on", "1e3"]


def read_back(*entries: InitEntry) -> list[Job]:
    data = job_file("x.sh", entries).encode()
    return list(load_text(data, Surroundings({}), name="jobs.yaml", base=Path("/")).jobs)


@pytest.mark.parametrize("text", NASTY)
def test_a_nasty_command_and_a_nasty_variable_read_back_as_themselves(text: str) -> None:
    run = f"echo {text}!"
    env = () if "\n" in text else (("X", escaped(text)),)
    (job,) = read_back(InitEntry("a", escaped(run), 1, env=env))
    assert not isinstance(job.run, tuple)
    assert render(job.run, {}) == run
    assert not env or render(job.env["X"] or "", {}) == text


@given(text=st.text(st.sampled_from("{}\\ abx_-1\n'\"$:#\té")))
def test_any_command_reaches_the_shell_as_it_is(text: str) -> None:
    run = f"echo {text}!"
    try:
        entry = InitEntry("a", escaped(run), 1)
    except Unfit:
        return
    (job,) = read_back(entry)
    assert not isinstance(job.run, tuple)
    assert render(job.run, {}) == run


@pytest.mark.parametrize("text", ["\x07", "a\u2028b", "\x7f", "a\rb", "a\x85b"])
def test_what_a_job_file_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(Unfit, match="cannot be written"):
        escaped(f"echo {text}")


def test_cards_and_numbers_beside_each_other_are_comments() -> None:
    entry = InitEntry("a", "true", 1, cards=frozenset({"1", "3"}), beside=2)
    text = job_file("x.sh", [entry])
    assert "# gpus: [1, 3]    # the cards of the script" in text
    assert "# The script ran 2 commands on a card at once (per_gpu: 2):\n#     a\n" in text
    assert [job.demand.per_gpu for job in read_back(entry)] == [1]
