"""Every mistake is said in one go, and at its own place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulaunch.base.errors import UsageError
from gpulaunch.jobfile.paths import read_env_file
from tests.jobfile.helpers import GOOD, job_of, jobs_of, mistakes_of


def said(text: str, base: Path = GOOD) -> list[str]:
    return [line.split(": ", 1)[1] for line in mistakes_of(text, base)]


def test_an_unknown_key_hides_no_other_mistake_of_retries() -> None:
    text = "jobs: [{run: x, retries: {on: [gpu_omm], dely: 3, times: -1}}]"
    key, classes, times = sorted(said(text))
    assert classes.startswith("jobs[0].retries.on[0]: unknown failure class 'gpu_omm'")
    assert key.startswith("jobs[0].retries.dely: unknown key; did you mean delay?")
    assert times.startswith("jobs[0].retries.times: expected how many retries")


@pytest.mark.parametrize("key", ["glob", "files"])
def test_who_writes_a_key_for_a_glob_is_told_its_form(key: str) -> None:
    (line,) = said(f"jobs: [{{run: x, foreach: {{{key}: '*.fasta'}}}}]")
    place = f"jobs[0].foreach.{key}: "
    assert line == place + "unknown key; a glob stands alone: foreach: inputs/*.fasta"


def test_every_need_that_matches_nothing_is_said() -> None:
    assert mistakes_of("jobs: [{run: x, needs: [a, job-1, b*, c]}]") == [
        "1:25: jobs[0].needs[0]: there is no job a",
        "1:35: jobs[0].needs[2]: b* matches no job's name",
        "1:39: jobs[0].needs[3]: there is no job c",
    ]
    text = "jobs: [{run: x, matrix: {n: [1, 2]}, needs: [xx, 'x{{n}}']}]"
    assert [line.split("there is no job ")[1] for line in mistakes_of(text)] == ["xx", "x1", "x2"]


def test_every_cycle_is_said() -> None:
    pairs = ", ".join(
        f"{{name: {a}, run: x, needs: {b}}}, {{name: {b}, run: x, needs: {a}}}"
        for a, b in ("ab", "cd", "ef")
    )
    assert [line[-len("a -> b -> a") :] for line in mistakes_of(f"jobs: [{pairs}]")] == [
        "a -> b -> a",
        "c -> d -> c",
        "e -> f -> e",
    ]


def test_thousands_that_wait_for_each_other_are_told_quickly() -> None:
    jobs = "".join(f"- {{name: b{i}, run: x, needs: ['a*']}}\n" for i in range(3000))
    text = "jobs:\n- {name: a, run: x, foreach: {values: [1, 2]}, needs: ['b*']}\n" + jobs
    assert 1 <= len(mistakes_of(text)) <= 50


def test_every_line_of_an_env_file_that_is_wrong_is_said(tmp_path: Path) -> None:
    (tmp_path / "e.env").write_text("A=1\nbad\nB='x\nCUDA_VISIBLE_DEVICES=1\n")
    lines = said("jobs: [{run: x, env_file: e.env}, {run: y, env_file: e.env}]", tmp_path)
    file = f"{tmp_path}/e.env"
    expected = [f"{file}:2: expected KEY=VALUE", f"{file}:3: the ' is not closed in this line"]
    assert [line.removeprefix("jobs[0].env_file: ") for line in lines[:2]] == expected
    assert lines[2].startswith(f"jobs[0].env_file: {file}:4: CUDA_VISIBLE_DEVICES cannot be set")
    assert len(lines) == 6
    with pytest.raises(UsageError, match=r"e\.env:2: expected KEY=VALUE"):
        read_env_file(tmp_path / "e.env")
    (tmp_path / "e.env").write_text("bad\n" * 1000)
    lines = said("jobs: [{run: x, env_file: e.env}]", tmp_path)
    assert lines[-1].endswith("e.env: and 980 more mistakes")


def test_an_empty_list_is_called_empty() -> None:
    assert said("jobs: [{run: x, matrix: {ok: []}}]") == [
        "jobs[0].matrix.ok: expected a list of values, found an empty list"
    ]


SCRIPT = r"""
jobs:
  - name: a
    run: |
      echo \{{x}} {{out}}
      # {{no}}
      n=$(( {{attempt}} + 1 ))
      echo "${v:-{{job}}}" `date {{out}}`
      echo {{tpyo}}
  - run: 'echo ''a'' $(( {{ attempt }} ))'
  - run: >
      echo one

      two $(( {{gpu}} ))
"""


def test_a_placeholder_that_cannot_be_quoted_is_pointed_at_with_advice() -> None:
    lines = mistakes_of(SCRIPT)
    assert lines.pop(3).startswith("9:12: jobs[0].run: unknown placeholder {{tpyo}}")
    assert [line.split(" cannot be quoted")[0] for line in lines] == [
        "7:13: jobs[0].run: {{attempt}}",
        "8:18: jobs[0].run: {{job}}",
        "8:34: jobs[0].run: {{out}}",
        "10:26: jobs[1].run: {{attempt}}",
        "14:15: jobs[2].run: {{gpu}}",
    ]
    advice = "; assign it to a variable before that and use the variable, or pass it in env:"
    assert all(advice in line or "(write $(...) instead)" in line for line in lines)


def test_an_unknown_placeholder_of_a_long_script_is_pointed_at() -> None:
    text = "jobs:\n- run: |\n    echo {{out}}\n    echo {{tpyo}} {{gpu}} {{tpyo}}\n"
    (line,) = mistakes_of(text)
    assert line.startswith("4:10: jobs[0].run: unknown placeholder {{tpyo}}")


def test_a_script_from_an_alias_is_pointed_at_where_it_is_used() -> None:
    text = "defaults: {env: {A: &s 'echo $(({{out}}))'}}\njobs:\n- run: *s\n- run: '{{out}}'\n"
    (line,) = mistakes_of(text)
    assert line.startswith("3:8: jobs[0].run: {{out}} cannot be quoted")


TABLE = "a b\tlr\n1\t2\n"


def test_a_column_without_a_placeholders_name_cannot_be_inserted(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text(TABLE)
    lines = said(
        """\
        jobs:
          - foreach: {csv: t.tsv}
            name: x-{{a b}}
            run: echo {{ a b }} {{lr}} {{nope}}
            env: {A: "{{a b}}"}
            cwd: "{{lr}}/{{a b}}"
        """,
        tmp_path,
    )
    assert [line.split(": {{a b}} cannot be inserted")[0] for line in lines if "a b" in line] == [
        "jobs[0].name",
        "jobs[0].run",
        "jobs[0].env.A",
        "jobs[0].cwd",
    ]
    (unknown,) = (line for line in lines if "unknown placeholder {{nope}}" in line)
    assert "a b" not in unknown
    assert "lr" in unknown


def test_such_a_column_hurts_nobody_who_does_not_insert_it(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text(TABLE)
    (job,) = jobs_of(r"jobs: [{run: 'x {{lr}} \{{a b}} {{c d}}', foreach: {csv: t.tsv}}]", tmp_path)
    assert job.run == r"x '2' \{{a b}} {{c d}}"
    assert job.params == {"a b": "1", "lr": "2"}
    assert job_of("run: 'x {{a b}}'").run == "x {{a b}}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", 'id;length;note\na;1,5;"x;y"\n'),
        ("t.csv", "id\tlength\tnote\na\t1,5\tx;y\n"),
        ("t.tsv", "id\tlength\tnote\na\t1,5\tx;y\n"),
        ("t.csv", 'id,length,note\na,"1,5",x;y\n'),
        ("t.csv", 'id,"length",note\r\na,"1,5",x;y\r\n'),
    ],
)
def test_a_table_may_be_what_a_spreadsheet_writes(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, newline="")
    (job,) = jobs_of(
        f"jobs: [{{name: '{{{{id}}}}', run: [x, '{{{{note}}}}'], foreach: {{csv: {name}}}}}]",
        tmp_path,
    )
    assert job.params == {"id": "a", "length": "1,5", "note": "x;y"}


def test_a_table_of_one_column_may_hold_semicolons(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id\na;b\n")
    (job,) = jobs_of("jobs: [{run: 'x {{id}}', foreach: {csv: t.csv}}]", tmp_path)
    assert job.params == {"id": "a;b"}
