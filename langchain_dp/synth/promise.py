"""What is said of a plan of rounds: its certificate, its constants, and why it is weak."""

from __future__ import annotations

from typing import Any

from langchain_dp.accounting import LedgerPlan, Neighbors, PrivacyCertificate
from langchain_dp.accounting.budget import weak_promise_reasons
from langchain_dp.ensemble.subsets import KEYED
from langchain_dp.mechanisms import Randomness
from langchain_dp.ports import NextTokenScorer
from langchain_dp.synth.settings import Design

_TWICE = "a record whose label changes may move two texts, each as far as one: every round is charged for both"


def certified(
    plan: LedgerPlan, design: Design, engine: NextTokenScorer, rng: Randomness, *notes: str, round_up: bool = False
) -> PrivacyCertificate:
    """The promise of a plan of rounds as it stands, with ``notes`` of what leaves."""
    groups = design.scheme == "groups"
    return plan.certificate(
        None if groups else design.charged(0),
        mechanism="exponential mechanism on clipped differences from the public model, token by token",
        model=engine.name,
        private=rng.private,
        reason="" if rng.private else "drawn from not_private_seed: whoever knows the seed can remove the noise",
        notes=(
            *notes,
            "each record is in one of the disjoint groups and pays for that one alone"
            if groups
            else "every record takes part in a round by a secret coin",
            KEYED,
            *(() if design.charges == 1 else (_TWICE,)),
            "style and common knowledge of many records come through, what few records hold does not",
            *weak(design, plan.epsilon, plan.delta),
            *getattr(engine, "notes", ()),
        ),
        parameters=parameters(design),
        round_up=round_up,
    )


def unasked(engine: NextTokenScorer, *notes: str) -> PrivacyCertificate:
    """The promise of texts that no record, and nothing that was released of one, had a part in."""
    return PrivacyCertificate(
        mechanism="the model alone",
        epsilon=0.0,
        delta=0.0,
        neighbors=Neighbors.ADD_OR_REMOVE_ONE,
        model=engine.name,
        notes=(
            "no record was shown to the model: these texts cost nothing of their own",
            "what the model was told of each label counts as public",
            *notes,
        ),
    )


def parameters(design: Design) -> dict[str, Any]:
    """What a certificate says of the noise."""
    noise = design.noise
    return {
        "clip": noise.clip,
        "members": noise.members,
        "temperature": noise.temperature,
        "sampling_probability": noise.event.sampling_probability,
        "tokens": noise.event.tokens,
        "rounds": design.rounds,
        "scheme": design.scheme,
    } | ({} if design.shots == 1 else {"shots": design.shots})


def weak(design: Design, epsilon: float, delta: float) -> tuple[str, ...]:
    """Why a promise is weak, if it is."""
    if design.records is not None:
        return weak_promise_reasons(epsilon, delta, design.records, "records")
    return weak_promise_reasons(
        epsilon, delta, round(1 / design.noise.event.sampling_probability), "draws that one record is expected in once"
    )
