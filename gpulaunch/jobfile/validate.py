"""One mapping of fields against its model: what is right, converted; what is wrong, taken down."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from gpulaunch.jobfile.fields import DEFAULT_FIELDS, FIELDS, LATER
from gpulaunch.jobfile.mistakes import FieldError, Mistakes
from gpulaunch.jobfile.suggest import did_you_mean_key
from gpulaunch.jobfile.tree import Path as Steps
from gpulaunch.jobfile.tree import Plain, YamlNode

OF_THE_FILE = frozenset({"notify", "limits", "defaults", "jobs"})
"""Keys that stand beside `jobs:` alone."""


def split(node: YamlNode) -> tuple[dict[str, Plain], set[str]]:
    """An entry's fields, and those that are null: as if not given, not even by `defaults`."""
    assert isinstance(node.value, dict)
    plain: dict[str, Plain] = {}
    nulls = set()
    for key, child in node.value.items():
        if child.value is None and key in FIELDS and key != "run":
            nulls.add(key)
        else:
            plain[key] = child.plain()
    return plain, nulls


def validate(
    model: type[BaseModel], plain: dict[str, Plain], where: Steps, mistakes: Mistakes
) -> tuple[dict[str, Any], bool]:
    """The fields that are right, converted; True if all are. Each mistake is added."""
    try:
        entry = model.model_validate(plain)
    except ValidationError as error:
        wrong = set()
        for detail in error.errors(include_url=False, include_input=False):
            wrong.add(_explain(detail, where, mistakes))
        kept = {key: value for key, value in plain.items() if key not in wrong}
        entry = model.model_validate(kept)
        return {key: getattr(entry, key) for key in kept}, False
    return {key: getattr(entry, key) for key in plain}, True


def _explain(detail: Any, where: Steps, mistakes: Mistakes) -> str:
    """One of pydantic's errors as ours; the field it is about."""
    field = str(detail["loc"][0])
    if detail["type"] == "extra_forbidden":
        if field in OF_THE_FILE:
            mistakes.add((*where, field), "belongs beside jobs:, for the whole run", key=True)
        elif field in LATER:
            mistakes.add((*where, field), "this version cannot do that yet", key=True)
        else:
            known = DEFAULT_FIELDS if where == ("defaults",) else FIELDS
            message = f"unknown key{did_you_mean_key(field, known)}"
            mistakes.add((*where, field), message, key=True)
    else:
        error = detail["ctx"]["error"]
        bad = error if isinstance(error, FieldError) else FieldError(str(error))
        mistakes.add_bad((*where, field), bad)
    return field
