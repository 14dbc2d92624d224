"""Clusters, for the suite that every engine passes."""

from __future__ import annotations

from tests.slurm.conftest import _shared, cluster, own_cluster, slurm_here

__all__ = ["_shared", "cluster", "own_cluster", "slurm_here"]
