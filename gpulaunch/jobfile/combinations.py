"""Makes the combinations of a `matrix:`: every one that no rule of `exclude:` names."""

from __future__ import annotations

import itertools
import math

from gpulaunch.jobfile.drafts import MAX_JOBS
from gpulaunch.jobfile.forms import Matrix
from gpulaunch.jobfile.mistakes import FieldError
from gpulaunch.jobfile.sampling import Combination, Range


def every_combination(matrix: Matrix) -> list[Combination]:
    """Return the combinations of a matrix of lists. Raises FieldError for too many, or none."""
    lists = {key: axis for key, axis in matrix.keys.items() if not isinstance(axis, Range)}
    count = math.prod(map(len, lists.values()))
    if count > MAX_JOBS:
        raise FieldError(f"{count:,} combinations; at most {MAX_JOBS:,} jobs are planned")
    if count * len(matrix.exclude) > 20 * MAX_JOBS:
        raise FieldError("too many rules for so many combinations", ("exclude",))
    rules = [rule.items() for rule in matrix.exclude]
    every = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    kept = [axes for axes in every if not any(rule <= axes.items() for rule in rules)]
    if not kept:
        raise FieldError("every combination is excluded", ("exclude",))
    return kept
