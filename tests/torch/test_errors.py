"""explain: the report on an error that has been caught."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from gpulaunch.diagnose.explain.report.words import report  # noqa: E402
from gpulaunch.torch import check_devices, explain, first_mixed_device  # noqa: E402
from tests.torch.nets import Net  # noqa: E402


def caught(how: str = "attribute") -> RuntimeError:
    """torch's own error on a tensor that .to() missed."""
    with FakeTensorMode(), torch.no_grad():
        model, batch = Net("cuda:0"), torch.ones(2, 4, device="cuda:0")
        try:
            model(batch, how)
        except RuntimeError as error:
            return error
    raise AssertionError("it did not fail")


def test_a_device_error_is_explained_from_its_frames() -> None:
    text = explain(caught())
    assert "return y + self.mask" in text
    assert "self.mask" in text
    assert "cuda:0" in text
    assert "cpu" in text


def test_inside_except_it_is_the_error_being_handled() -> None:
    error, texts = caught(), []
    try:
        raise error
    except RuntimeError:
        texts.append(explain())
    assert texts == [explain(error)]
    assert texts != [""]


def test_an_error_of_another_kind_has_no_report() -> None:
    try:
        raise KeyError("x")
    except KeyError:
        assert explain() == ""


def test_our_own_errors_tell_all_themselves() -> None:
    model, x = Net("meta"), torch.ones(2, 4)
    for fails in (lambda: check_devices(model, x, device="cpu"), lambda: watched(model, x)):
        with pytest.raises(RuntimeError) as told:
            fails()
        assert explain(told.value) == str(told.value)
        assert report(told.type, told.value, told.tb) == ""


def watched(model: Net, x: object) -> None:
    with first_mixed_device():
        model(x)


def test_without_an_error_it_says_what_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)
    with pytest.raises(ValueError, match="inside `except`"):
        explain()
