"""Write the candidates token by token, and count their correct answers. The journal holds every release."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tqdm import tqdm

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
from langchain_dp.opt.voters import TokenSource
from langchain_dp.ports import Token


class Run:
    """Writes candidates and counts their correct answers.

    ``rng`` draws public coins: the request of each candidate. ``halted`` is checked before every call; if it is true,
    :meth:`write` raises PlanError, and the run can be resumed.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        text: Text,
        end_tokens: frozenset[Token],
        journal: Journal,
        rng: Randomness,
        progress: bool | None,
        halted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._text = text
        self._end_tokens = end_tokens
        self._journal = journal
        self._rng = rng
        self._disabled = None if progress is None else not progress
        self._halted = halted

    def write(self, source: TokenSource, *, spent: Callable[[], float] | None = None) -> None:
        """Write candidates until there are enough or no call is left. ``spent`` gives epsilon for the progress bar."""
        made = sum(candidate.calls for candidate in self._journal.written)
        with tqdm(total=made + source.left(), initial=made, desc="writing", unit="call", disable=self._disabled) as bar:
            try:
                while (candidate := self._current(source)) is not None:
                    self._go_on(source, candidate, bar, spent)
            finally:
                source.close()

    def _current(self, source: TokenSource) -> Written | None:
        written = self._journal.written
        if written and not written[-1].ended:
            return written[-1]
        if len(written) >= self._settings.num_prompts or not source.left():
            return None
        written.append(Written(self._request()))
        self._journal.save()
        return written[-1]

    def _request(self) -> int:
        """Draw the next candidate's request by a public coin among the least used ones."""
        drawn = Counter(candidate.message for candidate in self._journal.written)
        requests = range(len(self._settings.prompts.messages))
        least = min(drawn[request] for request in requests)
        rare = [request for request in requests if drawn[request] == least]
        return rare[self._rng.randbelow(len(rare))]

    def _go_on(self, source: TokenSource, candidate: Written, bar: Any, spent: Callable[[], float] | None) -> None:
        plan = steps(
            candidate,
            max_new_tokens=self._settings.max_new_tokens,
            max_retries=self._settings.candidate_options.max_retries,
            end_tokens=self._end_tokens,
            stops=self._text.stops,
        )
        next(plan, None)  # stands where the first call is asked for
        while not candidate.ended:
            if not source.left(candidate.tokens):
                candidate.ended = "calls"
                break
            if self._halted() and not (candidate.tokens and source.whole):
                raise PlanError(CANCELLED)
            released = source.next_token(candidate.message, candidate.tokens)
            with contextlib.suppress(StopIteration):
                plan.send(released)
            self._journal.save()
            bar.update()
            if not bar.disable:  # to work out what was spent takes a moment
                bar.set_postfix(self._postfix(candidate, spent), refresh=False)
        plan.close()
        self._journal.save()

    def _postfix(self, candidate: Written, spent: Callable[[], float] | None) -> dict[str, Any]:
        # Released values only: how many members agreed on a token is private.
        shown: dict[str, Any] = {
            "prompt": f"{len(self._journal.written)}/{self._settings.num_prompts}",
            "tokens": len(candidate.tokens),
            "bottoms": sum(each.bottoms for each in self._journal.written),
        }
        if spent is not None:
            shown["epsilon"] = f"{spent():.3g}"
        return shown

    def written(self) -> list[Candidate]:
        """Return the written candidates with their faults. All of them are released."""
        return judged(self._settings, self._text, self._journal.written)

    def choices(self) -> list[PromptChoice]:
        """Return the prompts to select from; the initial instruction is the last."""
        return choices(self._settings, self.written())

    def counts(self, forward: Forward, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the correct answers of each candidate on the validation rows. Private."""
        found = self.choices()
        # One step a candidate: steps by rows would show their number, which add/remove keeps private.
        with tqdm(total=len(set(found)), desc="selecting", unit="prompt", disable=self._disabled) as bar:
            counts = correct_answers(
                forward, found, rows, prompts=self._settings.prompts, labels=self._settings.labels, advance=bar.update
            )
        forward.watch(self._settings.instruction)
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
    """Return the number of rows that the local model answers correctly under each choice. Private.

    Equal choices are evaluated once. A failed row counts as wrong, so one record adds at most one to any count and
    subtracts from none: the counts are monotone (Hong et al. 2024, Definition A.4).
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
