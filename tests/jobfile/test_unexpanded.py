"""What only a shell would expand is told where no shell reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.jobfile.mistakes import not_expanded
from tests.jobfile.helpers import mistakes_of

FOUND = {
    ("/x:$PATH", "env", "PATH"): ("$PATH", 'export PATH="/x:$PATH" at the beginning of run'),
    ("~/x", "env", "A"): ("~", "write the path of the directory"),
    ("${A:-/x}", "env", "C"): ("${A:-/x}", 'export C="${A:-/x}"'),
    ("${X%.fa}.out", "outputs", ""): ("${X%.fa}", "write what ${X%.fa} stands for"),
    ("$(date)", "env", "B"): ("$(date)", 'export B="$(date)"'),
    ("$GPULAUNCH_OUT/x", "outputs", ""): ("$GPULAUNCH_OUT", "write {{out}}"),
    ("${GPULAUNCH_KEEP}/x", "outputs", ""): ("${GPULAUNCH_KEEP}", "write {{keep}}"),
    ("$X/b", "outputs", ""): ("$X", "write what $X stands for"),
    ("{{out}}/*.{pdb,cif}", "outputs", ""): ("{pdb,cif}", "write * in its place"),
    ("in/{1..5}.fa", "foreach", ""): ("{1..5}", "a list with a pattern for each"),
    ("~bob/x", "foreach", ""): ("~bob", "the path of the directory"),
    ("~/x", "foreach", "values"): ("~", "the path of the directory"),
    ("$DATA/x", "run", ""): ("$DATA", "write run as a string"),
    (">", "run", ""): (">", "write run as a string"),
}
"""A text, its field and its key: what is found, and a part of what to write."""
FINE = [
    ("~/x", "foreach", ""),
    ("~/x", "outputs", ""),
    ("~/x.csv", "foreach", "csv"),
    ("~/venv", "venv", ""),
    ("{{out}}/{{stem}}.pdb", "outputs", ""),
    ("${oc.env:HOME}", "env", "A"),
    ("${hydra:runtime.cwd}", "run", ""),
    ("5$", "env", "A"),
    ("a{b,c}", "env", "A"),
    ("print $x", "run", ""),
    ("a~", "env", "A"),
]


@pytest.mark.parametrize("given", FOUND, ids=str)
def test_a_text_that_a_shell_would_change_is_found(given: tuple[str, str, str]) -> None:
    what, mend = FOUND[given]
    found = not_expanded(*given)
    assert found is not None
    assert found[0].startswith(f"{what} is ")
    assert mend in found[1]


@pytest.mark.parametrize("given", FINE, ids=str)
def test_a_text_that_means_itself_is_not(given: tuple[str, str, str]) -> None:
    assert not_expanded(*given) is None


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ("run: x, cwd: $HOME", "$HOME"),
        ("run: x, foreach: $DATA/*.fa", "$DATA"),
        ('run: x, foreach: "in/*.{fa,fasta}"', "{fa,fasta}"),
        ("run: x, foreach: {csv: $DATA/a.csv}", "$DATA"),
        ("run: x, env_file: $DATA/a.env", "$DATA"),
    ],
)
def test_a_path_that_is_not_there_for_want_of_a_shell_says_so(
    tmp_path: Path, fields: str, what: str
) -> None:
    (wrong,) = mistakes_of(f"jobs: [{{{fields}}}]", tmp_path)
    assert f"; {what} is not expanded here, because no shell reads this text: write " in wrong
