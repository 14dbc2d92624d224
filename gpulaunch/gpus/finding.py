"""What `gpulaunch doctor` has found, as a value: engines find some of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from gpulaunch.contracts.documents import DoctorLevel


class DoctorFinding(Struct, frozen=True):
    """A finding. `error`: no job can run; `warning`: some may not, or badly; `note`: no harm."""

    level: DoctorLevel
    what: str
    advice: str = ""
