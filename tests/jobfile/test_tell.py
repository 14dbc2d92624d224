"""`notify:`: its forms, and that no message and no `repr` holds an address."""

from __future__ import annotations

import pytest

from gpulaunch.base.errors import JobFileError
from gpulaunch.jobfile.notify_spec import OCCASIONS, Target, redacted, secret_in
from tests.jobfile.helpers import plan_of
from tests.jobfile.test_schema import accepts

JOBS = "\njobs: [{run: x}]"


def told(text: str) -> tuple[Target, ...]:
    return plan_of(f"notify: {text}{JOBS}").notify


def test_a_single_mapping_is_a_list_of_one() -> None:
    (target,) = told("{to: env:NTFY_URL}")
    assert (target.path, target.variable) == (("notify",), "NTFY_URL")
    assert target.on == frozenset(OCCASIONS)
    assert told("[{to: env:NTFY_URL}]")[0].path == ("notify", 0)
    assert plan_of("jobs: [{run: x}]").notify == ()
    assert told("null") == ()


def test_a_command_is_a_string_or_a_list() -> None:
    one, two = told("[{run: './tell.sh x', on: finish}, {run: [./tell.sh, x], every: 50, on: []}]")
    assert (one.run, one.on, one.every) == ("./tell.sh x", {"finish"}, None)
    assert (two.run, two.on, two.every) == (("./tell.sh", "x"), frozenset(), 50)


def test_names_and_reprs_hold_no_address() -> None:
    text = """[
        {to: "mailto://me:s3cret@example.org/s3cret"}, {to: "slack://s3cret/s3cret/s3cret"},
        {run: [curl, s3cret]}, {run: "KEY=s3cret curl x"}, {to: "env:HOOK"}]"""
    found = told(text)
    assert [target.name for target in found] == [
        "notify[0] (mailto://example.org/…)",
        "notify[1] (slack://…)",
        "notify[2] (curl)",
        "notify[3] (a command)",
        "notify[4] (env:HOOK)",
    ]
    assert "s3cret" not in repr(found) + repr(plan_of(f"notify: {text}{JOBS}"))


@pytest.mark.parametrize(
    "text",
    [
        'notify: {to: "slack://s3cret", tto: x}',
        "notify: s3cret",
        "notify: [s3cret]",
        "notify: {to: s3cret}",
        "notify: {to: [s3cret]}",
        'notify: {to: "slack://s3cret {{job}}"}',
        'notify: {to: "slack://s3cret", run: x}',
        'notify: {to: "slack://s3cret", on: never}',
        'notify: {to: "slack://s3cret", every: 0}',
        'notfy: {to: "slack://s3cret"}',
        'notify: {to: "slack://s3cret", to: x}',
        'notify: [{to: "slack://s3cret"',
        'jobs: [{run: x, notify: {to: "slack://s3cret"}}]',
    ],
)
def test_no_mistake_shows_an_address(text: str) -> None:
    with pytest.raises(JobFileError) as caught:
        plan_of(text if text.startswith("jobs") else text + JOBS)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("mailto://me:pw@example.org:25/x?to=y", "mailto://example.org/…"),
        ("https://hooks.slack.com/services/T0/B0/x", "https://hooks.slack.com/…"),
        ("ntfy://s3cret-topic", "ntfy://…"),
        ("dbus://", "dbus://…"),
        ("http://[s3cret", "http://…"),
    ],
)
def test_an_address_is_shown_without_what_makes_it_a_secret(address: str, shown: str) -> None:
    assert redacted(address) == shown


@pytest.mark.parametrize(
    ("address", "secret"),
    [
        ("env:HOOK", False),
        ("dbus://", False),
        ("mailto://mail.lab.example?from=a@b.de&to=c@d.de", False),
        ("mailto://me:pw@example.org", True),
        ("mailto://example.org?user=me&pass=pw", True),
        ("http://localhost:8000/gpulaunch", False),
        ("https://hooks.slack.com/services/T00000000/B00000000/XxXxXxXxXx12", True),
        ("slack://a/b/c", True),
        ("ntfy://topic", True),
    ],
)
def test_an_address_with_a_password_or_a_token_is_known(address: str, secret: bool) -> None:
    assert secret_in(address) == secret


@pytest.mark.parametrize(
    ("value", "right"),
    {
        '{to: "env:A"}': True,
        '{to: "slack://a/b/c", on: [finish]}': True,
        "[{run: x, every: 3}, {run: [a, b], on: paused}]": True,
        "null": True,
        '{to: "env:A", run: x}': False,
        "{every: 3}": False,
        "[]": False,
        '{to: "me@example.org"}': False,
        '{to: "env:A", on: [nightly]}': False,
        '{to: "env:A", every: 0}': False,
        '{to: "env:A", evry: 1}': False,
    }.items(),
)
def test_loader_and_schema_agree(value: str, right: bool) -> None:
    text = f"notify: {value}{JOBS}"
    try:
        plan_of(text)
        loads = True
    except JobFileError:
        loads = False
    assert (loads, accepts(text)) == (right, right)
