"""Services: addresses that can be asked, names that stay apart, and no endless wait."""

from __future__ import annotations

import pytest

from gpulaunch.core.template import Slot, Template
from tests.jobfile.helpers import job_of, jobs_of, mistakes_of

GOOD = [
    "tcp:8000",
    "tcp:{{port}}",
    "tcp:localhost:{{port}}",
    "tcp:::1:80",
    "tcp:800{{gpu_index}}",
    "http://127.0.0.1:{{port}}",
    "http://127.0.0.1:{{port}}/health?x=a:b",
    "https://me:pw@[::1]:8443/x",
    "http://{{job}}:80/",
]
BAD = [
    "tcp:",
    "tcp:70000",
    "tcp:0",
    "tcp:-1",
    "tcp:abc",
    "tcp:host",
    "tcp:localhost:",
    "tcp://127.0.0.1:80",
    "tcp:a b:80",
    "udp:80",
    "{{port}}",
    "http:///x",
    "http://:80",
    "http://{{port}}",
    "http://127.0.0.1/health",
    "http://127.0.0.1:/",
    "http://127.0.0.1:99999/",
    "http://127.0.0.1:8x/",
    "http://::1:80/",
    "http://127.0.0.1:80 /",
]


@pytest.mark.parametrize("ready", GOOD)
def test_an_address_that_can_be_asked(ready: str) -> None:
    assert job_of(f"run: x, service: {{ready: '{ready}'}}").service is not None


@pytest.mark.parametrize("ready", BAD)
def test_an_address_that_never_answers_is_a_mistake(ready: str) -> None:
    (line,) = mistakes_of(f"jobs:\n - run: x\n   service:\n     ready: '{ready}'\n")
    assert line.startswith("4:13: jobs[0].service.ready: expected tcp:{{port}}, tcp:HOST:{{port}}")
    assert ready in line


def test_an_items_address_is_looked_at_when_it_is_known() -> None:
    text = "jobs: [{run: x, matrix: {p: [80, abc, 70000]}, service: {ready: 'tcp:{{p}}'}}]"
    assert [line.split(", found ")[1] for line in mistakes_of(text)] == [
        "port 'abc' in 'tcp:abc' (for p=abc)",
        "port '70000' in 'tcp:70000' (for p=70000)",
    ]
    (job,) = jobs_of(text.replace("[80, abc, 70000]", "h").replace("{{p}}", "{{p}}:{{port}}"))
    assert job.service is not None
    assert job.service.ready == Template(("tcp:h:", Slot("port")))


def test_two_services_cannot_have_one_variable() -> None:
    assert mistakes_of(
        """\
        jobs:
          - {name: s-1, run: x, service: {ready: "tcp:80"}}
          - {name: S_1, run: x, service: {ready: "tcp:80"}}
          - {name: s.1, run: x}
        """
    ) == [
        "3:12: jobs[1].name: the address of the service S_1 would be GPULAUNCH_ADDR_S_1, as that"
        " of s-1; rename one of them"
    ]


SERVED = """
jobs:
  - {{name: srv, run: x, service: {{ready: "tcp:80"}}}}
  - {{name: u, run: x, needs: srv, after: [{u}]}}
  - {{name: w, run: x, after: [{w}]}}
"""


def test_a_job_that_holds_a_service_open_cannot_wait_for_its_end() -> None:
    assert mistakes_of(SERVED.format(u="w", w="srv")) == [
        "4:42: jobs[1].after: a cycle: u -> w -> the end of srv -> u; a service ends when all that"
        " need it have ended"
    ]
    assert len(mistakes_of(SERVED.format(u="srv", w=""))) == 1
    assert len(jobs_of(SERVED.format(u="w", w=""))) == 3
    assert len(jobs_of(SERVED.format(u="", w="srv"))) == 3
    assert len(jobs_of(SERVED.format(u="", w="srv, u"))) == 3


def test_ends_are_waited_for_across_services() -> None:
    text = """
jobs:
  - {name: db, run: x, service: {ready: "tcp:80"}}
  - {name: api, run: x, needs: db, service: {ready: "tcp:81"}}
  - {name: u, run: x, needs: [api, w]}
  - {name: w, run: x, after: db}
"""
    (line,) = mistakes_of(text)
    assert "a cycle: u -> w -> the end of db -> the end of api -> u" in line
    assert len(jobs_of(text.replace("[api, w]", "api"))) == 4


def test_services_that_need_each_other_are_one_cycle() -> None:
    text = "{name: a, run: x, needs: b, SERVICE}, {name: b, run: x, needs: a, SERVICE}"
    text = text.replace("SERVICE", "service: {ready: 'tcp:80'}")
    (line,) = mistakes_of(f"jobs: [{text}]")
    assert line.endswith("jobs[0].needs: a cycle: a -> b -> a")
