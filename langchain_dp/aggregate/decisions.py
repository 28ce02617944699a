"""Prototypes as a decision model of langchain-core 1.8."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import HumanMessage
from pydantic import PrivateAttr

from langchain_dp._util import validate
from langchain_dp._util.extras import needs
from langchain_dp.accounting import PrivacyCertificate
from langchain_dp.aggregate.prototypes import DPPrototypeClassifier
from langchain_dp.ensemble.questions import as_messages, question_texts
from langchain_dp.errors import InvalidParameter
from langchain_dp.records import label_name

with needs("decisions", "langchain-core", why=", 1.8 or newer and before 1.9, for decision models"):
    from langchain_core.decisions import (
        Answer,
        BaseDecisionModel,
        Choice,
        ChoiceAnswer,
        ClassifierResponse,
        Noul,
        NoulAnswer,
        Question,
    )


def state_to_text(state: Any) -> str:
    r"""Return the last human message of a decision model's state, then the tool call on its own line.

    Args:
        state: A str, a message, messages, or a mapping with ``messages`` or ``text``. A ``tool_call`` may stand alone.

    Raises:
        InvalidParameter: The state holds no text, or a message with an image.

    Examples:
        >>> state_to_text({"messages": [("human", "Tidy up.")], "tool_call": {"name": "delete", "args": {"id": 7}}})
        'Tidy up.\ndelete {"id": 7}'
    """
    call = state.get("tool_call") if isinstance(state, Mapping) else None
    if not isinstance(call, Mapping):
        return question_texts(state, ("text",))["text"]
    messages = as_messages(state.get("messages") or []) or []
    human = [message for message in messages if isinstance(message, HumanMessage)]
    lines = [question_texts(human, ("text",))["text"]] if human else []
    arguments = json.dumps(call.get("args"), ensure_ascii=False, default=str)
    return "\n".join([*lines, f"{call.get('name')} {arguments}"])


class DPDecisionModel(BaseDecisionModel):
    """A decision model that answers with private prototypes, without limit and at no cost.

    For ``ModelRouterMiddleware`` and ``AutoModeMiddleware`` of langchain 1.5. Descriptions, instructions and thresholds
    have no effect. Compare the confidence instead.

    - A ``Choice`` gets the most probable of its criteria, which must be labels, with probabilities among them.
    - A ``Noul`` gets the probability of the label ``yes`` among all labels.
    - ``Score`` and ``Box`` are refused.

    Args:
        classifiers: One fitted classifier, or a mapping from question id (``model_route``, ``is_risky``) to classifier.
        yes: Label that means yes.
        text: Function from the state to the text.
        model: Name of the model in traces and answers.

    Raises:
        MissingExtra: Install the extra ``decisions``.
        InvalidParameter: A classifier is missing, or ``yes`` or a criterion is no label, or a state is blank.

    Formal guarantee:
        That of the classifiers: queries are post-processing. The certificate adds up their costs. The state is not
        covered, and tracers see it, except inside ``private_run()``.

    Examples:
        >>> decisions = DPDecisionModel(classifier)  # fitted with labels=["small", "large"]
        >>> router = ModelRouterMiddleware(choices=choices, instructions="Route the ticket.", classifier=decisions)
        >>> agent = create_agent(model, middleware=[router])
    """

    _only: DPPrototypeClassifier[Any] | None = PrivateAttr()
    _by_id: dict[str, DPPrototypeClassifier[Any]] = PrivateAttr()
    _yes: str | None = PrivateAttr()
    _text: Callable[[Any], str] = PrivateAttr()
    _certificate: PrivacyCertificate = PrivateAttr()

    def __init__(
        self,
        classifiers: DPPrototypeClassifier[Any] | Mapping[str, DPPrototypeClassifier[Any]],
        *,
        yes: Any = None,
        text: Callable[[Any], str] = state_to_text,
        model: str = "dp-prototypes",
    ) -> None:
        super().__init__(model=model)
        listed = list(classifiers.values()) if isinstance(classifiers, Mapping) else [classifiers]
        if not listed or not all(isinstance(one, DPPrototypeClassifier) for one in listed):
            raise InvalidParameter(
                f"Expected classifiers of type {type(classifiers).__name__} to be a DPPrototypeClassifier, or a "
                "mapping from question ids to them. Fit one with DPPrototypeClassifier.fit(...)."
            )
        names = [label_name(label) for one in listed for label in one.labels]
        if yes is not None and label_name(yes) not in names:
            raise InvalidParameter(f"Expected yes={yes!r} to be one of the labels {names[:20]}. Name one of them.")
        self._only = None if isinstance(classifiers, Mapping) else classifiers
        self._by_id = dict(classifiers) if isinstance(classifiers, Mapping) else {}
        self._yes = label_name(yes)
        self._text = validate.function("text", text, of="the state")
        self._certificate = listed[0].certificate()
        for other in listed[1:]:
            self._certificate = self._certificate.including(other.certificate().as_sources())

    @property
    def _provider(self) -> str:
        return "langchain_dp"

    def certificate(self) -> PrivacyCertificate:
        """Return all classifiers' promise."""
        return self._certificate

    def _classify(self, state: Any, questions: dict[str, Question]) -> ClassifierResponse:
        text = self._text(state)
        answers = {name: self._answer(name, question, text) for name, question in questions.items()}
        return ClassifierResponse(model=self.model, answers=answers)

    def _answer(self, name: str, question: Question, text: str) -> Answer:
        if not isinstance(question, (Choice, Noul)):
            raise InvalidParameter(
                f"Expected the question {name!r} to be a Choice or a Noul, not {type(question).__name__}. Prototypes "
                "know labels alone: ask for one."
            )
        classifier = self._only or self._by_id.get(name)
        if classifier is None:
            raise InvalidParameter(
                f"Expected the question id {name!r} to be one of {list(self._by_id)}. Give its classifier under this "
                "id, in the mapping of classifiers."
            )
        labels = [label_name(label) for label in classifier.labels]
        of, wanted = ("criteria", list(question.criteria)) if isinstance(question, Choice) else ("yes", [self._yes])
        if unknown := [label for label in wanted if label not in labels]:
            raise InvalidParameter(
                f"Expected {of}={unknown[:20]} of the question {name!r} to be labels of its classifier. Use some of "
                f"{labels[:20]}, or give this question id a classifier of its own."
            )
        shares = dict(zip(labels, classifier.probabilities(text).values(), strict=True))
        if isinstance(question, Noul):
            return NoulAnswer(type="noul", noul=shares[self._yes])
        total = sum(shares[label] for label in wanted)
        # A prior may give all probability to labels outside of the criteria.
        chosen = {label: shares[label] / total if total else 1 / len(wanted) for label in question.criteria}
        best = max(chosen, key=chosen.__getitem__)
        return ChoiceAnswer(type="choice", choice=best, probabilities=chosen, confidence=chosen[best])
