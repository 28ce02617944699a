"""Private examples and answers in free text, written on a local model."""

from __future__ import annotations

from langchain_dp.synth.answers import DPAnswerGenerator
from langchain_dp.synth.candidates import DPExampleSelector, write_candidates
from langchain_dp.synth.chat_model import ChatDPGenerator
from langchain_dp.synth.examples import SyntheticExample, SyntheticExamples
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
    "SynthesisPlan",
    "SynthesisPrompts",
    "SyntheticExample",
    "SyntheticExamples",
    "write_candidates",
]
