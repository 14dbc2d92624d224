"""Serves `--metrics-port`: takes the port first, prints its address, serves until the run's end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gpulaunch.cli.output import say
from gpulaunch.extras import require
from gpulaunch.journal.rundir import RunDir
from gpulaunch.prometheus.port import Exporter


class MetricsRequest(Protocol):
    @property
    def metrics_port(self) -> int | None: ...
    @property
    def dry_run(self) -> bool: ...


class Served:
    """What `--metrics-port` asked for; does nothing where it did not. A context manager.

    `earlier`: how long jobs took in earlier runs, for the estimate. Making one raises UsageError
    where the port cannot be had, or what serves it is not installed.
    """

    def __init__(self, options: MetricsRequest, earlier: Mapping[str, float] | None = None) -> None:
        self._options = options
        self._earlier = earlier
        port = None if options.dry_run else options.metrics_port
        if port is not None:
            require("prometheus", "--metrics-port")
        self._exporter = None if port is None else Exporter(port)

    def announce(self) -> None:
        if self._exporter is not None:
            # Nobody can know a port that we chose: print it despite --quiet.
            quiet = self._options if self._options.metrics_port else None
            say(f"metrics at {self._exporter.address}", quiet)

    def start(self, run: RunDir) -> None:
        """Serve a run that has a journal; a failure to serve does not stop the run."""
        if self._exporter is None:
            return
        try:
            self._exporter.start(run, self._earlier)
        except OSError as error:
            say(f"the metrics are not served: {error.strerror or error}", self._options)

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def say_unserved(options: MetricsRequest) -> None:
    """Warn that --metrics-port has no effect on a live run."""
    if options.metrics_port is not None:
        say("--metrics-port changes nothing for a run that is alive already", options)
