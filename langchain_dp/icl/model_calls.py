"""How a classifier asks its model: how long, how many at a time, and who watches whether it answers."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from langchain_dp._util import validate
from langchain_dp.isolation.model import CALLS

OnModelFailure = Literal["raise", "ignore"]
"""What a release does when its public companion shows that the model does not answer."""


@dataclasses.dataclass(frozen=True)
class ModelCallOptions:
    """How a classifier asks its model. Public; ``dataclasses.asdict`` saves it, and several classifiers may share it.

    Args:
        timeout: Seconds for one model call; a call that takes longer abstains. Refused for models that answer one call
            after the other, and named in the certificate: a slow call may cost others their votes.
        max_concurrency: Model calls at a time, over all questions of one classifier; a ``max_concurrency`` in the
            config limits questions. So many public test questions are asked at once before the first release: a server
            that takes fewer raises ``ModelUnavailable``, and nothing is charged.
        on_model_failure: Each question is also asked once with invented examples in place of the private ones, where
            the model runs elsewhere (anything but an engine in this process). "raise": where that call fails, or names
            no label, the release raises ``ModelUnavailable``; it has cost one answer, and the next release asks a
            public test question before it is charged. "ignore": no such call, and an answer may be noise alone.
        max_question_chars: Longest question, with its template, for models without a known limit.
        max_example_chars: Longest example for such models; a longer one is shown by its beginning. Choose it so that
            the examples of a subset and the question fit into the model's context: a subset that does not fit
            abstains, and nobody can be told. An engine knows its limit and cuts by itself.
        min_response_seconds: Hold every new answer until this long after its question (a side channel narrowed).

    Raises:
        InvalidParameter: A value is out of bounds.

    Examples:
        >>> patient = ModelCallOptions(timeout=120.0, max_concurrency=4)
        >>> dataclasses.replace(patient, on_model_failure="ignore").timeout
        120.0
    """

    timeout: float | None = None
    max_concurrency: int = CALLS
    on_model_failure: OnModelFailure = "raise"
    max_question_chars: int = 20_000
    max_example_chars: int = 20_000
    min_response_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None:
            validate.number("timeout", self.timeout, above=0.0)
        validate.integer("max_concurrency", self.max_concurrency, at_least=1)
        validate.one_of("on_model_failure", self.on_model_failure, get_args(OnModelFailure))
        validate.integer("max_question_chars", self.max_question_chars, at_least=1)
        validate.integer("max_example_chars", self.max_example_chars, at_least=1)
        if self.min_response_seconds is not None:
            validate.number("min_response_seconds", self.min_response_seconds, above=0.0)
