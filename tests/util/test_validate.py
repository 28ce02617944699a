"""Checks of named values."""

from __future__ import annotations

import numpy as np
import pytest

from langchain_dp._util import validate
from langchain_dp.errors import InvalidParameter

SECRET = "Anna Meier has had diabetes since May"


@pytest.mark.parametrize("value", [[SECRET], {"text": SECRET}, SECRET, SECRET.replace(" ", "")])
def test_a_text_in_the_wrong_place_is_not_repeated(value: object) -> None:
    """If it breaks, arguments that were swapped by mistake put private text into an exception, and so into a log."""
    for check in (
        lambda: validate.number("eta", value, above=0.0),  # type: ignore[arg-type]
        lambda: validate.integer("shots", value, at_least=1),  # type: ignore[arg-type]
        lambda: validate.one_of("mechanism", value, ("laplace", "exponential")),
    ):
        with pytest.raises(InvalidParameter) as caught:
            check()
        assert "Meier" not in str(caught.value)
        assert type(value).__name__ in str(caught.value)


def test_a_value_that_can_be_shown_is() -> None:
    """If it breaks, an error does not say which value was wrong."""
    with pytest.raises(InvalidParameter, match=r"eta=-1\.5"):
        validate.number("eta", -1.5, above=0.0)
    with pytest.raises(InvalidParameter, match="shots=0"):
        validate.integer("shots", 0, at_least=1)
    with pytest.raises(InvalidParameter, match=r"shots=.*5.* to be a plain int\. Give int\(shots\)"):
        validate.integer("shots", np.int64(5), at_least=1)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidParameter, match="mechanism='laplas'"):
        validate.one_of("mechanism", "laplas", ("laplace", "exponential"))


@pytest.mark.parametrize("value", [10**400, -(10**5000)], ids=["400", "5000"])
def test_a_whole_number_that_no_float_holds_is_refused(value: int) -> None:
    """If it breaks, a number of hundreds of digits in a settings file ends in a traceback."""
    for check in (
        lambda: validate.number("rate", value, at_least=0.0, at_most=1.0),
        lambda: validate.integer("rate", value, at_least=0, at_most=1),
    ):
        with pytest.raises(InvalidParameter, match="rate of type int, too long to be shown") as caught:
            check()
        assert len(str(caught.value)) < 200
