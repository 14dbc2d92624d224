"""The table of failure classes: what may be tried again, and where."""

from __future__ import annotations

from gpulaunch.core.retry import POLICIES


def test_only_a_lost_card_is_set_aside() -> None:
    assert [kind for kind, policy in POLICIES.items() if policy.aside] == ["gpu_lost"]


def test_only_what_the_job_is_not_to_blame_for_is_free() -> None:
    assert {kind for kind, policy in POLICIES.items() if policy.free} == {"lost", "gpu_lost"}


def test_the_classes_that_no_repetition_mends_are_never_tried_again() -> None:
    for kind in ("device_mismatch", "assert", "driver", "no_gpu_seen", "wrong_gpu", "disk_full"):
        assert (POLICIES[kind].again, POLICIES[kind].other) == ("no", "no"), kind


def test_out_of_memory_goes_to_more_memory_and_a_crash_once_elsewhere() -> None:
    assert POLICIES["gpu_oom"].other == "larger"
    assert POLICIES["crash"].other == "once"
    assert POLICIES["wrong_arch"].other == "other_kind"
