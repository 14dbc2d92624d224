"""`map` in chunks: makes items of inputs, and single results of the items' results.

Workers import this module for `run_chunk`, so it imports next to nothing.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


def chunks(inputs: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    inputs = iter(inputs)
    while chunk := list(itertools.islice(inputs, size)):
        yield chunk


def run_chunk(fn: Callable[..., T], chunk: Sequence[tuple[Any, ...]]) -> list[T]:
    return [fn(*args) for args in chunk]


def results(
    executor: Executor | None,
    fn: Callable[..., T],
    futures: deque[Future[list[T]]],
    more: Iterator[list[tuple[Any, ...]]] | None,
    until: float | None,
) -> Iterator[list[T]]:
    """Yield the futures' results in order; cancel the futures that are left when closed.

    `more`: the chunks that are not submitted yet; one is, for each result that is taken.
    """
    try:
        while futures:
            if executor and more and (chunk := next(more, None)) is not None:
                futures.append(executor.submit(run_chunk, fn, chunk))
                del chunk
            yield _result(futures.popleft(), until)
    finally:
        for future in futures:
            future.cancel()


def flat(parts: Iterator[list[T]]) -> Iterator[T]:
    """Yield the single results of all chunks, and keep none that was yielded."""
    for chunk in parts:
        chunk.reverse()
        while chunk:
            yield chunk.pop()


def _result(future: Future[T], until: float | None) -> T:
    """Return the future's result; cancel the future where the wait is given up."""
    try:
        return future.result(None if until is None else until - time.monotonic())
    finally:
        future.cancel()
        del future  # a traceback that holds this frame must not hold what was computed
