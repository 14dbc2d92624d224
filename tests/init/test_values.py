"""What words may stand for, compared with what bash makes of them."""

from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulaunch.init.script import MASK, Script, Unfit, walk
from gpulaunch.init.values import ANY, NATURAL, UNKNOWN, Known, Value

SOME = frozenset({NATURAL})


def texts(*found: str) -> Value:
    return frozenset(found)


@pytest.fixture
def known() -> Known:
    made = Known(Script(""), arguments=(texts("0"), UNKNOWN))
    made.set("i", texts("0", "1", "2"))
    made.set("n", SOME)
    made.set("u", UNKNOWN)
    made.set("x", texts("a b"))
    made.set("N", texts("4"))
    made.lists["G"] = (texts("0"), texts("1"), texts("3"))
    return made


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("0,1", texts("0,1")),
        ("'$i'", texts("$i")),
        ('"$x"', texts("a b")),
        ("$i", texts("0", "1", "2")),
        ("a$i", texts("a0", "a1", "a2")),
        ("$((i + 1))", texts("1", "2", "3")),
        ("$((2*i))", texts("0", "2", "4")),
        ("$((i - 1))", texts("-1", "0", "1")),
        ("$((n % N))", texts("0", "1", "2", "3")),
        ("$((n % u))", SOME),
        ("$((u % N))", UNKNOWN),
        ("$((n + 1))", SOME),
        ("$((n - 1))", UNKNOWN),
        ("$(( (n + 1) % 2 ))", texts("0", "1")),
        ("$((RANDOM % 2))", texts("0", "1")),
        ("${G[$i]}", texts("0", "1", "3")),
        ("${G[$((n % ${#G[@]}))]}", texts("0", "1", "3")),
        ("${G[n % 3]}", texts("0", "1", "3")),
        ("${G[$n]}", UNKNOWN),
        ("${G[3]}", UNKNOWN),
        ("${#G[@]}", texts("3")),
        ("$1", texts("0")),
        ("$3", UNKNOWN),
        ("$missing", UNKNOWN),
        ("*.x", UNKNOWN),
        ("~/x", UNKNOWN),
        ("$(date)", UNKNOWN),
        ("$i,$N", texts("0,4", "1,4", "2,4")),
        ("a$u", texts(f"a{ANY}")),
        ("08", texts("08")),
        ("$((08))", UNKNOWN),
    ],
)
def test_what_a_word_may_stand_for(word: str, found: Value, known: Known) -> None:
    script = Script(f"A={word}")
    (node,) = (node for node in walk(script.root) if node.type == "variable_assignment")
    known.script = script
    assert known.value(node.child_by_field_name("value")) == found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("0 1 'a b'", (["0", "1", "a b"], True)),
        ("{0..2}", (["0", "1", "2"], True)),
        ("{a,b}", (["a", "b"], True)),
        ("$(seq 3)", (["1", "2", "3"], True)),
        ("$(seq 2 3)", (["2", "3"], True)),
        ("$(seq 0 $((N-1)))", (["0", "1", "2", "3"], True)),
        ("$(seq 0 $u)", ([NATURAL], False)),
        ("$x", (["a", "b"], True)),
        ('"$x"', (["a b"], True)),
        ('"${G[@]}"', (["0", "1", "3"], True)),
        ('"${!G[@]}"', (["0", "1", "2"], True)),
        ("{0..999}", ([NATURAL], False)),
        ("*.fa", None),
        ("$u", None),
        ("$(ls)", None),
    ],
)
def test_what_a_list_becomes(
    words: str, found: tuple[list[str], bool] | None, known: Known
) -> None:
    script = Script(f"for f in {words}; do :; done")
    known.script = script
    made = known.items(script.root.children[0].children_by_field_name("value"))
    expected = None if found is None else (tuple(map(texts, found[0])), found[1])
    assert made == expected


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (texts("0"), 1),
        (texts("0,1"), 2),
        (texts("", "-1"), 0),
        (texts(f"{NATURAL},{NATURAL}"), 2),
        (texts("GPU-5f3c,GPU-77aa"), 2),
        (texts("0", "1"), 1),
        (texts("0", "0,1"), "now fewer"),
        (texts("0", ""), "now fewer"),
        (texts(f"0{ANY}"), "not known"),
        (texts("0,0"), "twice"),
        (texts("0, 1"), "no list"),
        (texts("0,-1"), "no list"),
        (texts("MIG-GPU-1/2/3"), "no list"),
    ],
)
def test_how_many_cards_a_mask_names(value: Value, count: int | str) -> None:
    script = Script(f"{MASK}=$g")
    (node,) = script.root.named_children
    known = Known(script)
    known.set("g", value)
    if isinstance(count, int):
        assert known.mask(node, node.child_by_field_name("value")) == (count, value)
    else:
        with pytest.raises(Unfit, match=count):
            known.mask(node, node.child_by_field_name("value"))


ATOMS = st.sampled_from(["0", "1", "3", "7", "i", "n", "$i", "(i+2)", "N"])
SUMS = st.recursive(
    ATOMS, lambda inner: st.builds("({}{}{})".format, inner, st.sampled_from("+-*%/"), inner)
)


@settings(max_examples=60, deadline=None)
@given(SUMS, st.integers(0, 2), st.integers(0, 50))
def test_bash_comes_to_one_of_the_numbers(text: str, i: int, n: int) -> None:
    known = Known(Script(""))
    known.set("i", texts("0", "1", "2"))
    known.set("n", SOME)
    known.set("N", texts("4"))
    found = known.number_in(text)
    run = f"i={i} n={n} N=4; echo $(({text}))"
    said = subprocess.run(["bash", "-c", run], capture_output=True, text=True, check=False).stdout
    if found == UNKNOWN or not said:
        return
    pattern = "|".join(re.escape(one).replace(NATURAL, r"\d+") for one in found)
    assert re.fullmatch(pattern, said.strip()), (text, said, found)


def test_arithmetic_sets_variables() -> None:
    known = Known(Script(""))
    known.set("i", texts("1"))
    assert known.number_in("i++") == texts("1")
    assert known.get("i") == texts("2")
    assert known.number_in("i = (i + 1) % 3") == texts("0")
    assert known.number_in("j += i") == UNKNOWN
    known.number_in("i = x ? 1 : 2")
    assert known.get("i") == UNKNOWN


def test_what_holds_on_two_ways_is_joined_and_what_a_loop_changes_is_widened() -> None:
    one, other = Known(Script("")), Known(Script(""))
    one.set("a", texts("0"))
    other.set("a", texts("1"))
    one.set("only", texts("0"))
    one.join(other)
    assert one.get("a") == texts("0", "1")
    assert ANY in "".join(one.get("only"))
    one.join(other, widen=True)
    assert one.get("a") == SOME
