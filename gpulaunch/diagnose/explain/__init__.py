"""Reports on uncaught device errors, for jobs with `explain: true`.

Owns what is put into such a job's environment; `inject/` and `report/` run in the job's own
interpreters and import nothing of the package. Never imports torch.

The directory is named by its absolute path inside the installed package, editable or not. A
package inside a zip file has no such directory; gpulaunch does not run from one, since its keepers
are started by path as well. A container of a job's own shows that path; programs in one that a
job's script starts itself simply get no report.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping

HOME = os.path.dirname(os.path.abspath(__file__))
"""What a container has to show for its programs to report: what is injected, and the reports."""
INJECT = os.path.join(HOME, "inject")


def environment(
    base: Mapping[str, str], own: Mapping[str, str | None], folder: str = INJECT
) -> dict[str, str]:
    """Return the variables to set, so that Python programs of a job explain their device errors.

    `base` is what the job inherits, `own` what it sets (None: removes). PYTHONPATH is what the job
    would have had, in its order, after `folder`, which has what is injected. Empty where that path
    cannot be spelt in PYTHONPATH.
    """
    if os.pathsep in folder:
        return {}
    theirs = own["PYTHONPATH"] if "PYTHONPATH" in own else base.get("PYTHONPATH")
    # An empty variable is none; an empty entry beside ours would be the working directory.
    entries = [entry for entry in theirs.split(os.pathsep) if entry != folder] if theirs else []
    return {"PYTHONPATH": os.pathsep.join([folder, *entries])}
