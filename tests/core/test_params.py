"""What foreach and matrix gave a job, in little memory."""

from __future__ import annotations

import json
import sys

import pytest

from gpulaunch.core.model import Params

NAMES = ("item", "seed")


def test_they_are_what_a_dict_of_them_would_be() -> None:
    params = Params(NAMES, ("a", "1"))
    assert params == {"item": "a", "seed": "1"} == params
    assert params != {"item": "a", "seed": "2"}
    assert list(params.items()) == [("item", "a"), ("seed", "1")]
    assert json.loads(json.dumps(dict(params))) == params
    assert repr(params) == repr(dict(params))
    assert params["seed"] == "1"
    assert params.get("stem") is None
    assert "stem" not in params


def test_a_name_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="stem"):
        Params(NAMES, ("a", "1"))["stem"]


def test_they_take_less_than_a_dict() -> None:
    texts = ("a", "1")
    own = sys.getsizeof(Params(NAMES, texts)) + sys.getsizeof(texts)
    assert own * 3 < sys.getsizeof({**dict(zip(NAMES, texts, strict=True))}) * 2
