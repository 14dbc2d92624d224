"""The example's configuration loads, and speaks of metrics and labels that a run has."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from gpulaunch.observe.prometheus.families import names
from tests.examples.helpers import EXAMPLES
from tests.prometheus.support import page, tallied
from tests.views.history import History

FOLDER = EXAMPLES / "prometheus"
WORDS = {"and", "or", "on", "sum", "by", "increase", "instance"}


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def rules() -> list[dict[str, Any]]:
    (group,) = load("alerts.yml")["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_the_scrape_configuration_names_the_loopback_address_and_the_rules() -> None:
    config = load("prometheus.yml")
    assert set(config) == {"global", "rule_files", "scrape_configs"}
    (scraped,) = config["scrape_configs"]
    (target,) = scraped["static_configs"][0]["targets"]
    port = target.removeprefix("127.0.0.1:")
    assert f"--metrics-port {port}" in (FOLDER / "prometheus.yml").read_text()
    assert all((FOLDER / name).is_file() for name in config["rule_files"])


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_metrics_that_there_are(rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    run = History().open().jobs("a", "b").start("a", 0)
    exported = {
        sample.name
        for family in page(tallied(run.facts), run.now).families.values()
        for sample in family.samples
    }
    asked = set(re.findall(r"[a-z_]{2,}", re.sub(r"\[\w+\]", "", rule["expr"])))
    assert asked - WORDS
    assert asked - WORDS <= exported
    assert rule["expr"].count("(") == rule["expr"].count(")")


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rules_text_uses_labels_that_its_result_has(rule: dict[str, Any]) -> None:
    # `instance` is Prometheus' own; `gpu` is there where the first vector has it.
    used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    allowed = {"instance"} | ({"gpu"} if "gpulaunch_gpu_attempts" in rule["expr"] else set())
    assert used <= allowed


def test_every_family_has_a_name_of_its_own() -> None:
    known = [family.name for family in names()]
    assert len(known) == len(set(known))
