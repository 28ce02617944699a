"""Private batches on Ray: one account, many workers, each with its own connection."""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from langchain_dp._util.extras import needs
from langchain_dp._util.validate import integer
from langchain_dp.errors import LangChainDPError, ModelUnavailable

_RETRIES = 3
"""Retries of a batch whose worker died: one that kills every worker must not be charged forever."""


def map_private_batches(
    dataset: Any, batches: Callable[[Any], Any], *, workers: int = 2, batch_size: int = 1024, cpus: float = 1.0
) -> Any:
    """Send the rows of a Ray dataset through a private step, in workers that each open it once.

    Ray restarts a worker that dies, and its batches up to three times each; released batches are returned again. Ray
    keeps the RAW rows in memory and, when it runs short, on disk, with logs on every node: the whole cluster is inside
    the trust boundary.

    Args:
        dataset: ``ray.data.Dataset`` with the columns that ``batches`` asks for.
        batches: The step for each batch, :class:`~langchain_dp.rapt.SanitizeBatches`. It is sent by pickle.
        workers: Workers to start, at least 1.
        batch_size: Rows that are charged and released together, at least 1. A larger batch is faster, but a death
            between charge and store costs it twice.
        cpus: Processors that Ray reserves per worker; 0 for no count.

    Returns:
        The dataset of released rows, lazy as Ray's are.

    Raises:
        InvalidParameter: A number is out of bounds.
        MissingExtra: Ray is not installed.

    Examples:
        >>> sanitize = SanitizeBatches("text", document="id", ledger=ledger, eta=4.0)
        >>> safe = map_private_batches(dataset, sanitize, workers=8)
        >>> safe.write_parquet("safe")
    """
    integer("workers", workers, at_least=1)
    integer("batch_size", batch_size, at_least=1)
    data = _import_ray("ray.data")
    return dataset.map_batches(
        _Worker,
        fn_constructor_args=(batches,),
        compute=data.ActorPoolStrategy(size=workers),
        batch_size=batch_size,
        batch_format="pyarrow",
        num_cpus=cpus,
        max_task_retries=_RETRIES,
    )


@contextlib.contextmanager
def ray_workers(
    work: Callable[[Any], Any], workers: int = 2, *, cpus: float = 1.0
) -> Iterator[Callable[[Any], Callable[[], Any]]]:
    """Workers for callers that read and write the files themselves.

    They run on the cluster of ``RAY_ADDRESS``, or on a temporary one on this machine. Ray restarts a worker that dies,
    and its batches up to three times each.

    Args:
        work: The step for each batch. It is sent by pickle, once.
        workers: Workers to start, at least 1.
        cpus: Processors that Ray reserves per worker; 0 for no count.

    Yields:
        A function that starts a batch and returns another one, which waits for its result. That raises ModelUnavailable
        where its workers died, or failed with an error of another library.

    Raises:
        InvalidParameter: A number is out of bounds.
        MissingExtra: Ray is not installed.

    Examples:
        >>> with ray_workers(sanitize, 8) as hand:
        ...     waiting = [hand(batch) for batch in batches]
        ...     released = [wait() for wait in waiting]
    """
    integer("workers", workers, at_least=1)
    ray = _import_ray()
    mine = not ray.is_initialized()
    if mine:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        remote = ray.remote(num_cpus=cpus, max_restarts=-1, max_task_retries=_RETRIES)(_Worker)
        actors = [remote.remote(work) for _ in range(workers)]
        turns = itertools.cycle(actors)

        def hand(batch: Any) -> Callable[[], Any]:
            reference = next(turns).do.remote(batch)

            def wait() -> Any:
                try:
                    return ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    cause = error.cause
                except ray.exceptions.RayActorError:
                    raise ModelUnavailable(
                        f"The worker of one batch died {_RETRIES + 1} times; its batch may have been charged each "
                        "time, and nothing of it left. Look into the memory of the workers, or give smaller batches."
                    ) from None
                if isinstance(cause, LangChainDPError):
                    raise cause
                # Of a foreign library: its text may quote what it was given.
                raise ModelUnavailable(f"A worker of Ray failed with {type(cause).__name__}; its text is withheld.")

            return wait

        yield hand
        for actor in actors:
            ray.kill(actor)
    finally:
        if mine:
            ray.shutdown()


class _Worker:
    """The object that Ray builds once in each worker."""

    def __init__(self, batches: Callable[[Any], Any]) -> None:
        self._batches = batches

    def __call__(self, batch: Any) -> Any:
        return self._batches(batch)

    def do(self, batch: Any) -> Any:
        """One batch of an actor."""
        return self._batches(batch)


def _import_ray(module: str = "ray") -> Any:
    with needs("ray", "ray", why=", on which the workers run"):
        return importlib.import_module(module)
