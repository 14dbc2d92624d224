"""The configuration files: what they mean together, and every mistake with its place."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpulaunch.base.errors import ConfigurationError, UsageError
from gpulaunch.jobfile import config as files
from gpulaunch.jobfile.config import place_of_runs
from gpulaunch.jobfile.config_file import KEYS, NOT_THE_MACHINES, explained, schema
from gpulaunch.jobfile.config_model import (
    LEASE_DIR,
    NOTHING,
    Allowance,
    Configuration,
    lease_dir,
    wrong_runs,
)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's file limits")


class Files:
    """The machine's and the user's file in a directory of their own."""

    def __init__(self, path: Path) -> None:
        self.machine = path / "etc" / "config.yaml"
        self.own = path / "xdg" / "gpulaunch" / "config.yaml"
        for file in (self.machine, self.own):
            file.parent.mkdir(parents=True)
        self.environ = {"XDG_CONFIG_HOME": str(path / "xdg"), "HOME": str(path), "USER": "ann"}

    def read(self, machine: str | bytes = "", own: str | bytes = "") -> Configuration:
        for file, text in ((self.machine, machine), (self.own, own)):
            if text:
                file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return files.current(self.environ, str(self.machine))

    def mistakes(self, machine: str | bytes = "", own: str | bytes = "") -> list[str]:
        """Each as `LINE:COLUMN: FIELD: MESSAGE`; where it has no place, without that."""
        found = self.read(machine, own).mistakes
        return [
            f"{m.line}:{m.column}: {m.field}: {m.message}" if m.line else m.message for m in found
        ]


@pytest.fixture
def both(tmp_path: Path) -> Files:
    return Files(tmp_path)


# ── Together ────────────────────────────────────────────────────────────────────────────────────


def test_without_files_every_default_holds(both: Files) -> None:
    assert both.read() is NOTHING


def test_a_file_of_comments_says_nothing(both: Files) -> None:
    assert both.read("# nothing yet\n\n   # at all\n") == NOTHING


def test_a_key_that_is_null_is_not_given(both: Files) -> None:
    assert both.read("runs: ~\ngpus:\nlimits: {users: null}\n").runs is None


def test_the_user_s_file_wins_but_where_the_machine_s_must_hold(both: Files) -> None:
    config = both.read(
        "gpus: {never: [0], last: [3]}\nruns: /scratch/runs\nlease_dir: /run/a\n"
        "slurm: {partition: gpu, account: lab}\nfree_below: 2GB\n",
        "gpus: {never: GPU-5f3c, last: [1, 2]}\nruns: ~/runs\nlease_dir: /run/b\n"
        "slurm: {partition: long}\n",
    )
    machine, own = both.machine, both.own
    assert [(one.name, one.source) for one in config.never] == [
        ("0", f"{machine}:1"),
        ("GPU-5f3c", f"{own}:1"),
    ]
    assert [one.name for one in config.last] == ["1", "2"]
    assert (config.runs, config.sources["runs"]) == ("~/runs", f"{own}:2")
    assert (config.lease_dir, config.sources["lease_dir"]) == ("/run/a", f"{machine}:3")
    assert config.slurm == {"partition": ("long",), "account": ("lab",)}
    assert config.sources["slurm.partition"] == f"{own}:4"
    assert config.sources["slurm.account"] == f"{machine}:4"
    assert config.free_below == "2GB"
    assert not config.mistakes


def test_the_user_s_last_is_in_place_of_the_machine_s_even_if_it_names_none(both: Files) -> None:
    assert [one.name for one in both.read("gpus: {last: [3]}\n", "gpus: {last: ~}\n").last] == ["3"]
    config = both.read("gpus: {last: [3]}\n", "gpus: {last: []}\n")
    assert (config.last, config.mistakes) == ((), ())


def test_a_file_that_changes_is_read_again(both: Files) -> None:
    assert both.read("runs: /a\n").runs == "/a"
    assert both.read("runs: /bb\n").runs == "/bb"
    both.machine.unlink()
    assert both.read() is NOTHING


def test_the_environment_goes_before_both_files_for_the_lease_directory(both: Files) -> None:
    config = both.read("lease_dir: /run/a\n")
    assert lease_dir(config, {LEASE_DIR: "/run/b"}) == ("/run/b", LEASE_DIR)
    assert lease_dir(config, {}) == ("/run/a", f"{both.machine}:1")
    assert lease_dir(NOTHING, {}) == (None, "")


# ── Mistakes ────────────────────────────────────────────────────────────────────────────────────

MISTAKES = {
    "rums: /a": ["1:1: rums: unknown key; did you mean runs?"],
    "defaults: {timeout: 1h}": [
        "1:1: defaults: unknown key (known: free_below, gpus, lease_dir, limits, notify, runs,"
        " slurm)"
    ],
    "gpus: {nevr: [0], last: [x, 1]}": [
        "1:8: gpus.nevr: unknown key; did you mean never?",
        "1:26: gpus.last[0]: expected a card's index or UUID",
    ],
    "gpus: 2": ["1:7: gpus: expected {never: [0], last: [3]}, found '2'"],
    "runs: here": ["1:7: runs: expected a directory like /scratch/$USER/runs"],
    "runs: '/tmp/${US'": ["1:7: runs: expected $NAME or ${NAME} where a $ is"],
    "runs: /tmp/$$": ["1:7: runs: expected $NAME or ${NAME} where a $ is"],
    "runs: [/a]": ["1:7: runs: expected a directory like"],
    "lease_dir: ~/x": ["1:12: lease_dir: expected an absolute path"],
    "free_below: 200 %": ["1:13: free_below: expected a part of the card above 0%"],
    "free_below: much": ["1:13: free_below: expected memory like 2GB"],
    "slurm: {partition: gpu, nodes: 2}": ["1:25: slurm.nodes: unknown key"],
    "slurm: {extra: [--array=1-3]}": ["1:17: slurm.extra[0]: "],
    "slurm: {partition: '{{p}}'}": ["1:20: slurm.partition: placeholders are filled in a job"],
    "notify: {to: nobody, on: [never]}": [
        "1:14: notify.to: expected an address",
        "1:27: notify.on[0]: expected one of finish",
    ],
    "limits: {users: {ann: -1, bob: many}, group: {lab: 2}}": [
        "1:23: limits.users.ann: expected how many cards at once",
        "1:32: limits.users.bob: expected how many cards at once",
        "1:39: limits.group: unknown key; did you mean groups?",
    ],
    "- 1": ["1:1: : expected keys like runs:, found a list"],
    "runs: /a\nruns: /b": ["2:1: : key 'runs' twice; the first is in line 1"],
    "runs: {": ["1:7: : not YAML: the bracket opened here is never closed"],
}


@as_root
@pytest.mark.parametrize("text", MISTAKES)
def test_every_mistake_is_told_with_its_place(text: str, both: Files) -> None:
    found = both.mistakes(text)
    assert len(found) == len(MISTAKES[text]), found
    for one, expected in zip(found, MISTAKES[text], strict=True):
        assert one.startswith(expected)


def test_what_is_right_in_a_file_with_mistakes_holds_for_who_only_looks(both: Files) -> None:
    config = both.read("rums: /a\n", "runs: /b\nfoo: 1\n")
    assert config.runs == "/b"
    assert len(config.mistakes) == 2
    with pytest.raises(ConfigurationError) as caught:
        files.required(both.environ, str(both.machine))
    assert f"{both.machine}:1:1: rums" in str(caught.value)
    assert f"{both.own}:2:1: foo" in str(caught.value)
    assert caught.value.status == 2


def test_no_line_with_an_address_to_tell_is_shown(both: Files) -> None:
    (mistake,) = both.read("notify: {to: 'ntfy://token-of-mine/x', on: [nevr]}\n").mistakes
    assert "token-of-mine" not in mistake.text


HOSTILE: dict[str, tuple[bytes, str]] = {
    "aliases": (
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(
            b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1)] * 9)) for n in range(98, 110)
        ),
        "values, aliases expanded",
    ),
    "deep": (b"runs: " + b"[" * 5000, "nested more than 50 deep"),
    "cyclic": (b"a: &a [*a]", "contains itself"),
    "not UTF-8": (b"runs: /\xff\xfe\n", "not UTF-8"),
    "binary": (b"runs: /a\0b\n", "NUL byte"),
    "large": (b"# " + b"x" * (1 << 21), "may have at most 1,048,576 bytes"),
    "control": (b"runs: /a\x1b[2J\n", "control character U+001B"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_quickly(kind: str, both: Files) -> None:
    data, expected = HOSTILE[kind]
    before = time.process_time()
    (mistake,) = both.read(own=data).mistakes
    assert expected in mistake.message
    assert time.process_time() - before < 5


def test_a_file_that_cannot_be_opened_is_a_mistake_and_not_passed_over(both: Files) -> None:
    both.own.mkdir()
    os.mkfifo(both.machine)
    kinds = both.mistakes()
    assert [text.rpartition(": ")[2] for text in kinds] == [
        "not a regular file; expected a configuration file",
        "a directory; expected a configuration file",
    ]


@as_root
def test_a_file_that_this_user_may_not_read_is_a_mistake(both: Files) -> None:
    both.machine.write_text("runs: /a\n")
    both.machine.parent.chmod(0o700)
    os.seteuid(65534)
    try:
        assert "permission denied" in both.mistakes()[0]
    finally:
        os.seteuid(0)


# ── Limits ──────────────────────────────────────────────────────────────────────────────────────

LIMITS = "limits:\n  users: {default: 2, 65533: 4, root: 7}\n  groups: {65532: 3, 65531: 5}\n"


def test_a_user_s_own_file_limits_nobody_and_says_so(both: Files) -> None:
    assert both.mistakes(own=LIMITS) == [f"1:1: limits: does not hold: {NOT_THE_MACHINES}"]


@as_root
@pytest.mark.parametrize(("owner", "mode"), [(65534, 0o644), (0, 0o664), (0, 0o646)])
def test_limits_hold_only_in_a_file_that_root_alone_may_write(
    owner: int, mode: int, both: Files
) -> None:
    both.machine.write_text(LIMITS)
    both.machine.chmod(mode)
    os.chown(both.machine, owner, 0)
    (found,) = both.mistakes()
    assert found.startswith("1:1: limits: does not hold: ")
    assert both.read().limits.users.counts == {}


@as_root
@pytest.mark.parametrize("own", [True, False])
def test_commands_of_a_file_that_another_user_may_write_are_not_executed(
    own: bool, both: Files
) -> None:
    file = both.own if own else both.machine
    file.write_text("notify: {run: id}\nfree_below: 2GB\n")
    os.chown(file, 65534, 0)
    (found,) = both.mistakes()
    assert found == "1:1: notify: does not hold: its owner is nobody, not root: chown root"
    assert both.read().notify == ()
    assert both.read().free_below == "2GB"


def limit_of(config: Configuration, user: int, *groups: int) -> Allowance | None:
    """What holds for a user in these groups."""
    before = os.getgroups()
    os.setgroups(groups)
    os.seteuid(user)
    try:
        return files.allowance_of(config)
    finally:
        os.seteuid(0)
        os.setgroups(before)


@as_root
def test_a_name_goes_before_groups_and_the_largest_group_before_the_default(both: Files) -> None:
    config = both.read(LIMITS)
    file = both.machine
    assert limit_of(config, 65533, 65531) == Allowance(4, f"{file}:2")
    assert limit_of(config, 65530, 65532, 65531) == Allowance(5, f"{file}:3")
    assert limit_of(config, 65530, 65532) == Allowance(3, f"{file}:3")
    assert limit_of(config, 65530) == Allowance(2, f"{file}:2")
    assert limit_of(config, 0) == Allowance(7, f"{file}:2")


@as_root
def test_root_is_limited_by_its_name_alone(both: Files) -> None:
    config = both.read("limits:\n  users: {default: 2}\n  groups: {root: 1}\n")
    assert limit_of(config, 0, 0) is None
    assert limit_of(both.read("limits: {users: {}}\n"), 65530) is None


# ── Where runs go ───────────────────────────────────────────────────────────────────────────────


def test_home_and_variables_are_replaced_and_each_working_directory_has_its_own(
    both: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, base in (
        ("runs: ~/r\n", tmp_path / "r"),
        ("runs: /s/$USER\n", Path("/s/ann")),
        ("runs: /s/${USER}x\n", Path("/s/annx")),
    ):
        config = both.read(own=text)
        with monkeypatch.context() as patch:
            patch.setattr("gpulaunch.jobfile.config.current", lambda _, config=config: config)
            one, other = [
                place_of_runs(Path(p), both.environ) for p in ("/data/proj", "/home/proj")
            ]
        assert one is not None
        assert one.parent == base
        assert one.name.startswith("proj-")
        assert other != one


@pytest.mark.parametrize("text", ["runs: $NOWHERE/r", "runs: ${NOWHERE}", "runs: $USER/r"])
def test_a_path_that_cannot_be_followed_is_a_mistake_and_else_as_if_not_there(
    text: str, both: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = both.read(own=text)
    (mistake,) = wrong_runs(config, both.environ)
    assert mistake.text.startswith(f"{both.own}:1: runs: ")
    with pytest.raises(ConfigurationError):
        files.required(both.environ, str(both.machine))
    monkeypatch.setattr("gpulaunch.jobfile.config.current", lambda _: config)
    if "NOWHERE" in text:
        assert place_of_runs(Path("/data"), both.environ) is None


def test_cron_sets_no_user_and_the_user_database_has_the_name(
    both: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"HOME": both.environ["HOME"]}
    monkeypatch.setattr("gpulaunch.jobfile.config_model._own_name", lambda: "ann")
    config = both.read(own="runs: /s/$USER\n")
    monkeypatch.setattr("gpulaunch.jobfile.config.current", lambda _: config)
    place = place_of_runs(Path("/data"), environ)
    assert place is not None
    assert place.parent == Path("/s/ann")


# ── The schema ──────────────────────────────────────────────────────────────────────────────────


def as_read(text: str) -> Any:
    return yaml.load(text, yaml.SafeLoader)


def test_the_schema_takes_what_the_reader_takes() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    for key in KEYS.values():
        jsonschema.validate(as_read(key.example), schema())


@as_root
@pytest.mark.parametrize("text", [t for t in MISTAKES if "twice" not in str(MISTAKES[t])])
def test_the_schema_refuses_what_the_reader_refuses(text: str) -> None:
    try:
        value = as_read(text)
    except yaml.YAMLError:
        return
    if any(word in text for word in ("much", "200 %", "--array", "{{p}}", "nobody", "[x", "many")):
        return  # what is text for the schema
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schema())


@as_root
@pytest.mark.parametrize("name", KEYS)
def test_every_key_has_an_example_that_can_be_read(name: str, both: Files) -> None:
    assert both.mistakes(KEYS[name].example) == []
    assert KEYS[name].meaning in explained(name)


def test_a_key_that_is_none_has_the_nearest_one_named() -> None:
    with pytest.raises(UsageError, match="did you mean limits"):
        explained("limts")
