"""Every placeholder in a script is quoted for where it stands; real shells are the judge."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulaunch.core.template import render
from gpulaunch.jobfile.shell import (
    commands_in,
    compile_script,
    literal_words,
    outline,
    value_of,
)

NASTY = [
    "",
    " ",
    "a b",
    "it's",
    '"',
    "'\"'\"'",
    "$(touch /nowhere/hit)",
    "`id`",
    "$HOME",
    "${x}",
    "\\",
    "a\\",
    "\\n",
    "line one\nline two\n",
    "\n",
    "*",
    "[a-z]?",
    "-n",
    "--",
    "!x!",
    "~",
    "#no",
    "; exit 3",
    "&& false",
    "|",
    "{a,b}",
    "Ünïcödé 蛋白",
    "5",
    "if",
    "A=1",
    "{{x}}",
    "%s",
    "\t",
    "')",
    "}",
    "))",
    "EOF",
]
# Each prints the value alone, closed by NUL.
SAFE = [
    "printf '%s\\0' {{x}}",
    "printf '%s\\0' '{{x}}'",
    "printf '%s\\0' \"{{x}}\"",
    "printf '%s\\0' ''{{x}}\"\"",
    'v="{{x}}"; printf "%s\\0" "$v"',
    "v={{x}}; printf '%s\\0' \"$v\"",
    "printf '%s\\0' \"$(printf %s {{x}}; echo .)\" | sed -z 's/\\.$//'",
    "printf '%s\\0' \"$(printf '%s.' \"{{x}}\")\" | sed -z 's/\\.$//'",
    "printf '%s\\0' \"$(printf '%s.' '{{x}}')\" | sed -z 's/\\.$//'",
    "printf '%s\\0' \"$(printf '%s.' \"$(printf %s. \"{{x}}\")\")\" | sed -z 's/\\.\\.$//'",
    "printf '%s\\0' {{x}}#'no comment' | sed -z 's/#no comment$//'",
    "printf '%s\\0' {{x}} # a comment with {{x}} and ' and $(",
    "# it's {{x}}\nprintf '%s\\0' {{x}}",
    "(printf '%s\\0' {{x}})",
    "f() { printf '%s\\0' \"$1\"; }; f {{x}}",
    "for v in {{x}}; do printf '%s\\0' \"$v\"; done",
    "case {{x}} in {{x}}) printf '%s\\0' {{x}};; esac",
    "if [ {{x}} = \"{{x}}\" ]; then printf '%s\\0' {{x}}; fi",
    "cat <<EOF >/dev/null\nit's \"$(( 1 + 2 ))\" `echo hi`\nEOF\nprintf '%s\\0' '{{x}}'",
    "cat <<'E F' <<-B >/dev/null\n$( ' \"\nE F\n\t'\n\tB\nprintf '%s\\0' \"{{x}}\"",
    'n=$(( (1 + 2) * 3 )); : "${n:-"$n"}" ${n#*\'}\'}; printf "%s\\0" {{x}}',
    "echo \\' \\\" >/dev/null; printf '%s\\0' {{x}}",
    "true \\\n  # c '\n printf '%s\\0' {{x}}",
    "printf '%s\\0' \"\\\"{{x}}\" | sed -z 's/^\"//'",
    "true $# $$ $? $! \"$*\"; printf '%s\\0' {{x}}",
]
BASH_ONLY = [
    "printf '%s\\0' $'{{x}}'",
    "printf '%s\\0' $'\\'\\n{{x}}\\t' | sed -z 's/^.\\n//;s/\\t$//'",
    "printf '%s\\0' $\"{{x}}\"",
    "while IFS= read -r -d '' v; do printf '%s\\0' \"$v\"; done < <(printf '%s\\0' {{x}})",
    "a=( {{x}} ); printf '%s\\0' \"${a[@]}\"",
    "printf '%s\\0' \"${a:-$(printf '%s.' {{x}})}\" | sed -z 's/\\.$//'",
    "IFS= read -r -d '' v <<<{{x}} || true; printf '%s\\0' \"${v%?}\"",
    "[[ {{x}} == {{x}} ]] && (( 1 < 2 )) && printf '%s\\0' {{x}}",
    "[[ {{x}} == '{{x}}' && {{x}} =~ ^{{x}}$ ]]; printf '%s\\0' {{x}}",
]


def many(template: str, values: list[str]) -> str:
    """One script that uses every value in turn: one shell for all of them."""
    return "\n".join(template.replace("{{x}}", f"{{{{v{i}}}}}") for i in range(len(values)))


def check_all(shell: list[str], template: str, values: list[str]) -> None:
    text, errors = compile_script(many(template, values), shell[0])
    assert errors == []
    script = render(text, {f"v{i}": value for i, value in enumerate(values)})
    done = subprocess.run([*shell, script], capture_output=True, timeout=60, check=False)
    assert done.stderr == b""
    assert done.stdout.decode() == "".join(value + "\0" for value in values)


@pytest.mark.parametrize("script", [*SAFE, *BASH_ONLY])
def test_bash_prints_exactly_the_value(script: str) -> None:
    check_all(["bash", "-c"], script, NASTY)


@pytest.mark.skipif(shutil.which("dash") is None, reason="no dash here")
@pytest.mark.parametrize("script", SAFE)
def test_dash_prints_exactly_the_value(script: str) -> None:
    check_all(["dash", "-c"], script, NASTY)


values = st.text(
    st.one_of(
        st.sampled_from("'\"\\$`!*?[]{}()<>|&;#~ \n\t-=%^,abé"),
        st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]),
    ),
    max_size=12,
)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.lists(values, min_size=5, max_size=30))
def test_any_value_survives_every_context(found: list[str]) -> None:
    for script in [SAFE[0], SAFE[1], SAFE[2], SAFE[6], SAFE[7], SAFE[8], *BASH_ONLY[:3]]:
        check_all(["bash", "-c"], script, found)


def _literal(text: str, printed: str) -> st.SearchStrategy[tuple[str, str]]:
    return st.just((text, printed))


X = "{{x}}"
IN_DOUBLE = [
    _literal(X, "X"),
    _literal("it's ( # ) ", "it's ( # ) "),
    _literal('\\" \\$ \\\\', '" $ \\'),
    _literal("$((1 + (2) * 3))", "7"),
    _literal('${n:-"a }"}', "a }"),
    _literal('`echo "hi)"`', "hi)"),
    _literal("$'", "$'"),
]
BARE = [
    _literal(X, "X"),
    _literal("a\\ \\'\\\"b#", "a '\"b#"),
    _literal("'\"$( {{x}}'", '"$( X'),
    _literal("$'\\'{{x}}\\t('", "'X\t("),
    _literal("$(( (1 + 2) ))", "3"),
    _literal("${n:-'}'}", "}"),
    _literal("\\\n", ""),
]
PRELUDES = [
    "",
    " # it's \" {{x}} ) $(\n",
    "\ntrue <<'E' <<-F ; \n' \" $( `echo`\nE\n)\n\tF\n",
    "( true ); ",
    "(( 1 < (2) )); ",
    "case x in x) ;; esac; ",
    'true "${n:-b}" ${#n} $# $$ \\( ; ',
]


def _together(pieces: list[tuple[str, str]]) -> tuple[str, str]:
    return "".join(text for text, _ in pieces), "".join(printed for _, printed in pieces)


def _double(inner: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    pieces = st.lists(st.one_of(*IN_DOUBLE, _substitution(inner, PRELUDES[:5])), max_size=4)
    return pieces.map(_together).map(lambda pair: (f'"{pair[0]}"', pair[1]))


def _substitution(
    inner: st.SearchStrategy[tuple[str, str]], preludes: list[str]
) -> st.SearchStrategy[tuple[str, str]]:
    return st.tuples(st.sampled_from(preludes), inner).map(
        lambda pair: (f"$( {pair[0]}printf '%s.' {pair[1][0]})", pair[1][1] + ".")
    )


def _words(inner: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    pieces = st.lists(st.one_of(*BARE, _double(inner)), min_size=1, max_size=4)
    return pieces.map(_together).map(lambda pair: ("''" + pair[0], pair[1]))


words = st.recursive(_words(_literal("''{{x}}", "X")), _words, max_leaves=6)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PRELUDES), words, values.filter(lambda value: "\r" not in value))
def test_any_nesting_of_contexts_prints_the_value(
    prelude: str, word: tuple[str, str], value: str
) -> None:
    text, errors = compile_script(f"{prelude}printf '%s\\0' {word[0]}", "bash")
    assert errors == []
    done = subprocess.run(
        ["bash", "-c", render(text, {"x": value})], capture_output=True, timeout=60, check=False
    )
    assert done.stderr == b""
    assert done.stdout.decode() == word[1].replace("X", value) + "\0"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("cat <<EOF\n{{x}}\nEOF", "in a here-document"),
        ("cat <<'EOF'\n{{x}}\nEOF", "in a here-document"),
        ("cat <<-EOF\n\t{{x}}\n\tEOF", "in a here-document"),
        ("cat <<{{x}}\n1\nEOF", "as the end mark of a here-document"),
        ("echo `echo {{x}}`", "inside `...`"),
        ('echo "`echo {{x}}`"', "inside `...`"),
        ('echo `echo "{{x}}"`', "inside `...`"),
        ("echo $(( {{x}} + 1 ))", "inside arithmetic"),
        ('echo $(( "{{x}}" + 1 ))', "inside arithmetic"),
        ("(( {{x}} > 1 ))", "inside arithmetic"),
        ("echo $[ {{x}} ]", "inside arithmetic"),
        ("echo ${v:-{{x}}}", "inside ${...}"),
        ('echo "${v:-{{x}}}"', "inside ${...}"),
        ('echo "${v:-"{{x}}"}"', "inside ${...}"),
        ("echo ${v:-'{{x}}'}", "inside ${...}"),
        ("echo ${{x}}", "right after a $"),
        ('echo "${{x}}"', "right after a $"),
        ("a[{{x}}]=1", "as a subscript"),
        ('echo "$(case a in a) echo hi;; esac)" {{x}}', "after `case`"),
        ("((echo a); (echo b)) ; echo {{x}}", "after (("),
        ('echo "${v:-\'}" {{x}}', "after a ' inside"),
        ("cat <<A $(echo\n) \nA\necho {{x}}", "after a here-document"),
        ("echo ${ echo hi; } {{x}}", "after ${"),
    ],
)
def test_what_cannot_be_quoted_is_an_error(script: str, why: str) -> None:
    _, errors = compile_script(script, "bash")
    assert len(errors) == 1
    assert errors[0][1].startswith("{{x}} cannot be quoted " + why)


def test_ansi_quotes_are_not_known_to_plain_sh() -> None:
    assert compile_script("echo $'a' {{x}}", "sh")[1]
    assert not compile_script("echo $'a' {{x}}", "bash")[1]


def test_every_misplaced_placeholder_is_named() -> None:
    _, errors = compile_script("echo `{{a}}`\ncat <<E\n{{b}}\nE\necho {{c}}", "bash")
    assert [(i, e.split()[0]) for i, e in errors] == [(0, "{{a}}"), (1, "{{b}}")]


def test_a_placeholder_in_a_comment_stays_text() -> None:
    text, errors = compile_script("echo hi # {{x}} 'quoted\n", "bash")
    assert (text, errors) == ("echo hi # {{x}} 'quoted\n", [])


def test_escaped_and_foreign_braces_are_text() -> None:
    script = r"docker ps --format '{{.ID}}' \{{end}} {{ a b }} ${arr[0]} {{x}}"
    text, errors = compile_script(script, "bash")
    assert errors == []
    expected = "docker ps --format '{{.ID}}' {{end}} {{ a b }} ${arr[0]} 'v'"
    assert render(text, {"x": "v"}) == expected


@settings(max_examples=300)
@given(st.text("'\"\\$`(){}[]<>#|&;\n -EOFcaseinx\0", max_size=60))
def test_no_script_breaks_the_scanner(script: str) -> None:
    names = script.count("\0")
    text, errors = compile_script(script.replace("\0", "{{x}}"), "bash")
    assert len(errors) <= names
    del text


# ── words and commands ──────────────────────────────────────────────────────────────────────────


@settings(max_examples=300)
@given(st.text("'\"\\$`(){}[]<>#|&;=\n -EOFcaseindocker", max_size=60))
def test_no_script_breaks_the_outline(script: str) -> None:
    assert len(outline(script, "bash")) == len(script)
    assert all(command.program is not None for command in commands_in(script, "bash"))


@settings(max_examples=150, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.text("'\"\\$`#~*?[]{}!^%=;& \tab-/.é\xa0", max_size=12))
def test_literal_words_are_those_that_bash_hands_on(script: str) -> None:
    words = literal_words(f"printf '%s\\0' x {script}")
    if words is not None:
        printed = bash(f"set -eu; printf '%s\\0' x {script}")
        assert printed == "".join(f"{value}\0" for _, value in words[2:])


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("a", "a"), ("'a b'", "a b"), ("a\\ b", "a b"), ('"$A"/x', "1/x"), ("${A}b", "1b"),
        ("~/x", "/home/x"), ("~", "/home"), ("'~/x'", "~/x"), ("$B", None), ("*.py", None),
        ("a'*'", "a*"), ("{a,b}", None), ("$(a)", None), ('"`a`"', None), ("~root/x", None),
    ],
)  # fmt: skip
def test_a_word_has_a_value_where_that_is_certain(typed: str, value: str | None) -> None:
    assert value_of(typed, {"A": "1", "HOME": "/home"}) == value


def bash(script: str) -> str:
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, check=True)
    return done.stdout.decode()
