"""Private batches on Ray."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from langchain_dp._util.extras import needs
from langchain_dp._util.validate import integer

_RETRIES = 3
"""A batch that kills workers must not be charged forever."""


def map_private_batches(
    dataset: Any, batches: Callable[[Any], Any], *, workers: int = 2, batch_size: int = 1024, cpus: float = 1.0
) -> Any:
    """Send the rows of a Ray dataset through a private step, in workers that each open it once.

    Ray restarts a dead worker, and its batches up to three times each. Released batches are returned again. Ray keeps
    the RAW rows in memory and on disk: the whole cluster is inside the trust boundary.

    Args:
        dataset: ``ray.data.Dataset`` with the columns of ``batches``.
        batches: The step for each batch, :class:`~langchain_dp.rapt.SanitizeBatches`, sent by pickle.
        workers: Workers to start.
        batch_size: Rows charged and released together. A death between charge and store costs them twice.
        cpus: Processors per worker.

    Returns:
        The lazy dataset of released rows.

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


class _Worker:
    """Built once in each worker."""

    def __init__(self, batches: Callable[[Any], Any]) -> None:
        self._batches = batches

    def __call__(self, batch: Any) -> Any:
        return self._batches(batch)


def _import_ray(module: str = "ray") -> Any:
    with needs("ray", "ray", why=", on which the workers run"):
        return importlib.import_module(module)
