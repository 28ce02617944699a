"""Sanitizes few-shot examples as they are selected."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from langchain_core.example_selectors import BaseExampleSelector

from langchain_dp._util import validate
from langchain_dp._util.reprs import safe_repr
from langchain_dp.errors import InvalidParameter, PrivateDataError
from langchain_dp.rapt.messages import json_container
from langchain_dp.rapt.restore import each_text
from langchain_dp.rapt.runnable import RAPTSanitizer
from langchain_dp.redact import redact_errors


class SanitizingExampleSelector(BaseExampleSelector):
    """Wraps a selector or a list of examples, and sanitizes the selected examples before they enter a prompt.

    An example that was selected before is returned again at no cost. Braces outside JSON become parentheses.

    Args:
        examples: A selector, or a list of examples, all of which are selected.
        sanitizer: Sanitizes all values of an example as one release.
        keep: Keys whose values pass in clear, such as the label.
        user_key: Key of the example's user. It is not passed on.

    Raises:
        InvalidParameter: No example has a key of ``keep``, or none could ever reach the sanitizer's limit: without a
            user, each is charged once.

    Formal guarantee:
        That of the sanitizer for each example. The choice of a selector that compares contents is not covered.

    Examples:
        >>> selector = SanitizingExampleSelector(examples, sanitizer, keep=["label"])
        >>> selector.select_examples({"text": "Where is my parcel?"})  # the labels are in clear
    """

    def __init__(
        self,
        examples: BaseExampleSelector | Sequence[Mapping[str, Any]],
        sanitizer: RAPTSanitizer,
        *,
        keep: Sequence[str] = (),
        user_key: str | None = None,
    ) -> None:
        validate.instance("sanitizer", sanitizer, RAPTSanitizer, "a RAPTSanitizer")
        if isinstance(keep, str) or not all(isinstance(key, str) for key in keep):
            raise InvalidParameter(f"Expected keep={keep!r} to be a list of keys.")
        sanitizer.check_limit("example", "Give user_key=, or a sanitizer without a limit.", user=user_key is not None)
        self._inner = examples if isinstance(examples, BaseExampleSelector) else None
        self._examples = [] if isinstance(examples, BaseExampleSelector) else [_checked(one) for one in examples]
        unknown = [key for key in keep if not any(key in one for one in self._examples)]
        if unknown and self._examples:
            raise InvalidParameter(f"Expected keep={list(keep)} to be keys of the examples, but none has {unknown}.")
        self._sanitizer = sanitizer
        self._keep = tuple(keep)
        self._user_key = user_key

    @redact_errors("while examples were selected")
    def add_example(self, example: dict[str, str]) -> Any:
        """Add a raw example."""
        return self._examples.append(_checked(example)) if self._inner is None else self._inner.add_example(example)

    @redact_errors("while examples were selected")
    async def aadd_example(self, example: dict[str, str]) -> Any:
        """Async twin of :meth:`add_example`."""
        return await asyncio.to_thread(self.add_example, example)

    @redact_errors("while examples were selected")
    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        """Select examples and sanitize them. BudgetExceeded: nothing was charged."""
        examples = self._examples if self._inner is None else self._inner.select_examples(input_variables)
        released = self._sanitizer.sanitize_mappings(examples, keep=self._keep, user_key=self._user_key)
        return [
            {key: value if key in self._keep else _without_braces(value) for key, value in one.items()}
            for one in released
        ]

    @redact_errors("while examples were selected")
    async def aselect_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        """Async twin of :meth:`select_examples`."""
        return await asyncio.to_thread(self.select_examples, input_variables)

    @safe_repr
    def __repr__(self) -> str:
        return f"SanitizingExampleSelector(<private>, {self._sanitizer!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivateDataError("SanitizingExampleSelector holds private examples and cannot be pickled or copied.")


_BRACES = str.maketrans("{}", "()")


def _without_braces(value: Any) -> Any:
    def replace(text: Any) -> Any:
        return text.translate(_BRACES) if isinstance(text, str) and json_container(text) is None else text

    return each_text(value, replace)


def _checked(example: object) -> Mapping[str, Any]:
    if not isinstance(example, Mapping):
        raise InvalidParameter(f"Expected examples to be mappings, not {type(example).__name__}.")
    return example
