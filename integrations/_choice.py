"""From a member's logits to a token, or to log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np
import numpy.typing as npt

from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Decoding

Logits = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]


class Choice:
    """Chooses tokens by one ``Decoding``, never those marked in ``never``."""

    def __init__(self, decoding: Decoding, never: npt.NDArray[np.bool_]) -> None:
        self._temperature = decoding.temperature
        self._penalty = decoding.repetition_penalty
        for token in decoding.banned:
            if not is_token(token, len(never)):
                raise InvalidParameter(
                    f"Expected decoding.banned to hold whole numbers in [0, {len(never) - 1}], the tokens of this "
                    f"model, not one of type {type(token).__name__}. Take them from the engine that is asked."
                )
        self._never = never.copy()
        self._never[np.array(sorted(decoding.banned), dtype=np.intp)] = True

    def token(self, logits: Logits, written: Sequence[int], draw: float) -> int | None:
        """None if a logit or coin is invalid, or no token is allowed."""
        if not np.isfinite(logits).all() or not 0 <= draw < 1:
            return None
        repeated = np.unique(np.array(written, dtype=np.intp))
        repeated = repeated[~self._never[repeated]]
        values = logits[repeated].astype(np.float64)
        with np.errstate(all="ignore"):  # an overflow is caught below
            values = np.where(values > 0, values / self._penalty, values * self._penalty)
            if self._temperature == 0:
                masked = logits.copy()  # single precision: twice as fast, and exact
                masked[self._never] = -np.inf
                masked[repeated] = -np.inf
                first = int(masked.argmax())
                best = [(-float(masked[first]), first), *zip((-values).tolist(), repeated.tolist(), strict=True)]
                value, token = min(best)
                return token if np.isfinite(value) else None
            wide = logits.astype(np.float64)
            wide[repeated] = values
            wide[self._never] = -np.inf
            return self._drawn(wide, draw)

    def _drawn(self, wide: npt.NDArray[np.float64], draw: float) -> int | None:
        top = wide.max()
        if not np.isfinite(top):
            return None
        wide -= top
        wide /= self._temperature
        np.exp(wide, out=wide)
        reached = np.cumsum(wide, out=wide)
        # The first token at which the sum exceeds the mark has a weight above zero. So has the last that raises it.
        mark = draw * reached[-1]
        at = int(reached.searchsorted(mark, side="right"))
        return at if at < len(reached) else int(reached.searchsorted(reached[-1], side="left"))


def is_token(token: object, vocabulary: int) -> bool:
    return isinstance(token, Integral) and not isinstance(token, bool) and 0 <= int(token) < vocabulary


def log_softmax(logits: Logits) -> Scores:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - np.log(np.exp(wide).sum()))
