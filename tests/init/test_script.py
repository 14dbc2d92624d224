"""The tree of a script, where the grammar has faults of its own."""

from __future__ import annotations

import pytest

from gpulaunch.init.script import Script, Unfit, walk, words_of


def words(source: str) -> list[str]:
    script = Script(source)
    script.refuse_unread()
    command = next(node for node in walk(script.root) if node.type == "command")
    return [script.text(word) for word in words_of(command)]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x $A/$B/c y", ["x", "$A/${B}/c", "y"]),
        ("x --o=$A-$B.$C $D", ["x", "--o=$A-${B}.$C", "$D"]),
        ("x $1/$2/$(d)", ["x", "$1/${2}/$(d)"]),
        ("x '$A/$B/c' \"$A/$B/c\"", ["x", "'$A/$B/c'", '"$A/$B/c"']),
        ("x a$ b", ["x", "a$", "b"]),
    ],
)
def test_variables_side_by_side_stay_in_one_word(source: str, found: list[str]) -> None:
    assert words(source) == found


@pytest.mark.parametrize(
    "source", ["x $A/$B/c y", "é=$A-$B-$C; let g=(g+1)%3", "x $1/$2/$3/$4.$5 z"]
)
def test_places_lead_back_to_the_script_as_it_was_typed(source: str) -> None:
    script = Script(source)
    assert script.place(len(script.source)) == len(script.typed)
    for node in walk(script.root):
        if node.type in ("word", "number", "command"):
            typed = script.typed[script.place(node.start_byte) : script.place(node.end_byte)]
            assert typed.replace(b"{", b"").replace(b"}", b"") == script.text(
                node
            ).encode().replace(b"{", b"").replace(b"}", b"")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("if a; then\n", "cannot read this line"),
        ("a\n<< 'END'\nb\nEND\n", "cannot read this"),
        ("cat <<EOF &\nx\nEOF\n", "cannot read this"),
        ("x=(1 2", "cannot read this line"),
    ],
)
def test_what_the_grammar_cannot_read_is_refused(source: str, why: str) -> None:
    script = Script(source)
    with pytest.raises(Unfit, match=why):
        script.refuse_unread()


def test_arithmetic_of_let_is_read_as_what_it_means() -> None:
    script = Script("  let g=(g+1)%3\nx\n")
    script.refuse_unread()
    assert script.source == b"  ((g=(g+1)%3))\nx\n"
    assert script.typed == b"  let g=(g+1)%3\nx\n"
