"""Write the candidates, and count their correct answers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tqdm.auto import tqdm

from langchain_dp.ensemble.runs import CANCELLED
from langchain_dp.errors import PlanError
from langchain_dp.mechanisms.randomness import Randomness
from langchain_dp.opt.candidates import Candidate, PromptChoice, choices, judged
from langchain_dp.opt.forward import Forward
from langchain_dp.opt.journal import Journal
from langchain_dp.opt.plan import Written, steps
from langchain_dp.opt.settings import Settings
from langchain_dp.opt.templates import OptPrompts
from langchain_dp.opt.text import Text
from langchain_dp.ports import Token


class _TokenSource(Protocol):
    """Source of the next token. None is a bottom."""

    def next_token(self, message: int, written: Sequence[Token]) -> Token | None: ...
    def left(self) -> int: ...
    def close(self) -> None: ...


@dataclasses.dataclass(eq=False, repr=False)
class Run:
    """Writes candidates. ``rng`` draws public requests. ``halted`` raises PlanError, and the run can resume."""

    settings: Settings
    _: dataclasses.KW_ONLY
    text: Text
    end_tokens: frozenset[Token]
    journal: Journal
    rng: Randomness
    progress: bool | None
    halted: Callable[[], bool] = lambda: False

    def write(self, source: _TokenSource, *, spent: Callable[[], float] | None = None) -> None:
        calls = self.journal.calls
        with self._bar("writing", "call", total=calls + source.left(), initial=calls) as bar:
            try:
                while (candidate := self._current(source)) is not None:
                    self._go_on(source, candidate, bar, spent)
            finally:
                source.close()

    def _bar(self, title: str, unit: str, *, total: int, initial: int = 0) -> Any:
        disable = None if self.progress is None else not self.progress
        return tqdm(total=total, initial=initial, desc=title, unit=unit, disable=disable)

    def _current(self, source: _TokenSource) -> Written | None:
        written = self.journal.written
        if written and not written[-1].ended:
            return written[-1]
        if len(written) >= self.settings.num_prompts or not source.left():
            return None
        written.append(Written(self._request()))
        self.journal.save()
        return written[-1]

    def _request(self) -> int:
        """Draw among the least used requests by a public coin."""
        drawn = Counter(candidate.message for candidate in self.journal.written)
        requests = range(len(self.settings.prompts.messages))
        least = min(drawn[request] for request in requests)
        rare = [request for request in requests if drawn[request] == least]
        return rare[self.rng.randbelow(len(rare))]

    def _go_on(self, source: _TokenSource, candidate: Written, bar: Any, spent: Callable[[], float] | None) -> None:
        plan = steps(
            candidate,
            max_new_tokens=self.settings.max_new_tokens,
            max_retries=self.settings.candidate_options.max_retries,
            end_tokens=self.end_tokens,
            stops=self.text.stops,
        )
        next(plan, None)
        while not candidate.ended:
            if not source.left():
                candidate.ended = "calls"
                break
            if self.halted():
                raise PlanError(CANCELLED)
            released = source.next_token(candidate.message, candidate.tokens)
            with contextlib.suppress(StopIteration):
                plan.send(released)
            self.journal.save()
            bar.update()
            if not bar.disable:  # composing the spent part takes a moment
                # Released values only: the number of votes for a token is private.
                shown: dict[str, Any] = {
                    "prompt": f"{len(self.journal.written)}/{self.settings.num_prompts}",
                    "tokens": len(candidate.tokens),
                    "bottoms": sum(each.bottoms for each in self.journal.written),
                }
                if spent is not None:
                    shown["epsilon"] = f"{spent():.3g}"
                bar.set_postfix(shown, refresh=False)
        plan.close()
        self.journal.save()

    def written(self) -> list[Candidate]:
        return judged(self.settings, self.text, self.journal.written)

    def choices(self) -> list[PromptChoice]:
        return choices(self.settings, self.written())

    def counts(self, forward: Forward, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        choices = self.choices()
        # One step per candidate: steps by rows would show their number, which add/remove keeps private.
        prompts, labels = self.settings.prompts, self.settings.labels
        with self._bar("selecting", "prompt", total=len(set(choices))) as bar:
            counts = correct_answers(forward, choices, rows, prompts=prompts, labels=labels, advance=bar.update)
        forward.watch(self.settings.instruction)
        return counts


def correct_answers(
    forward: Forward,
    choices: Sequence[PromptChoice],
    rows: Sequence[Mapping[str, Any]],
    *,
    prompts: OptPrompts,
    labels: Sequence[str],
    advance: Callable[[], object] = lambda: None,
) -> list[int]:
    """Return private counts of correct answers.

    One record adds at most one to any count and subtracts from none: counts are monotone (Hong et al. 2024, Def. A.4).
    """
    texts = [prompts.render(row) for row in rows]
    truth = [labels.index(str(row["label"])) for row in rows]
    counts: dict[PromptChoice, int] = {}
    for choice in choices:
        if choice not in counts:
            answers = forward.predict(choice.instruction, texts, choice.words)
            counts[choice] = sum(answer == right for answer, right in zip(answers, truth, strict=True))
            advance()
    return [counts[choice] for choice in choices]
