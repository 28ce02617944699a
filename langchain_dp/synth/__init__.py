"""Private examples: written once from private records, usable for ever."""

from __future__ import annotations

from langchain_dp.synth.answers import DPAnswerGenerator
from langchain_dp.synth.candidates import DPExampleSelector, write_candidates
from langchain_dp.synth.chat_model import ChatDPGenerator
from langchain_dp.synth.examples import SyntheticExample, SyntheticExamples
from langchain_dp.synth.filters import Filters
from langchain_dp.synth.prompts import AnswerPrompts, SynthesisPrompts
from langchain_dp.synth.report import AnswersPlan, SynthesisPlan
from langchain_dp.synth.runnable import DPExampleSynthesizer

__all__ = [
    "AnswerPrompts",
    "AnswersPlan",
    "ChatDPGenerator",
    "DPAnswerGenerator",
    "DPExampleSelector",
    "DPExampleSynthesizer",
    "Filters",
    "SynthesisPlan",
    "SynthesisPrompts",
    "SyntheticExample",
    "SyntheticExamples",
    "write_candidates",
]
