"""How much of a long answer a client is told: it pays for each word."""

from __future__ import annotations

from gpulaunch.mcp.arguments import NoteTaker
from tests.cli.launcher import Launcher
from tests.mcp.client import Talk, talk


def test_of_many_notes_the_first_are_told_each_cut_and_how_many_more_there_are() -> None:
    notes = NoteTaker()
    notes.note("\n".join(f"line {number} {'x' * 9000}" for number in range(30)))
    for number in range(30, 100):
        notes.note(f"line {number}")
    *told, last = notes.lines
    assert [line.split()[1] for line in told] == [str(number) for number in range(40)]
    assert max(map(len, told)) == 2000
    assert last == "... and 60 more lines"


def test_as_many_notes_as_may_be_are_told_whole() -> None:
    notes = NoteTaker()
    for number in range(40):
        notes.note(str(number))
    assert notes.lines == [str(number) for number in range(40)]


def test_of_a_file_with_many_mistakes_a_client_is_told_the_first(launcher: Launcher) -> None:
    launcher.file("jobs.yaml", "jobs:\n" + "".join(f"- {{rum: '{n}'}}\n" for n in range(200)))

    async def conversation(to: Talk) -> None:
        told = (await to.refused("run", job_file="jobs.yaml", simulate=1)).splitlines()
        assert "jobs.yaml:2:" in told[0]
        assert (len(told), told[-1].startswith("... and "), "more lines" in told[-1]) == (
            41, True, True,
        )  # fmt: skip

    talk(launcher, conversation)
