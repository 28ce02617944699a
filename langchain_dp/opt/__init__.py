"""DP-OPT: private prompts written by a local model for a cloud model (Hong et al., ICLR 2024)."""

from __future__ import annotations

from langchain_dp.ensemble.subsets import SamplingOptions
from langchain_dp.opt.baselines import DLNSettings, optimize_with_dln1, optimize_with_opt
from langchain_dp.opt.candidates import Candidate
from langchain_dp.opt.handover import OptimizedPrompt, load_prompt
from langchain_dp.opt.report import OptPlanReport
from langchain_dp.opt.runnable import DPPromptOptimizer, DPPromptSelector
from langchain_dp.opt.settings import CandidateOptions
from langchain_dp.opt.target import PromptScore, TargetChoice, TargetScore, choose_for_target, evaluate_prompt
from langchain_dp.opt.templates import (
    DISASTER,
    MPQA,
    SST2,
    TREC,
    OptPrompts,
    OptTask,
    PromptAlternative,
)
from langchain_dp.opt.verdict import Verdict
from langchain_dp.ports import Decoding

__all__ = [
    "DISASTER",
    "MPQA",
    "SST2",
    "TREC",
    "Candidate",
    "CandidateOptions",
    "DLNSettings",
    "DPPromptOptimizer",
    "DPPromptSelector",
    "Decoding",
    "OptPlanReport",
    "OptPrompts",
    "OptTask",
    "OptimizedPrompt",
    "PromptAlternative",
    "PromptScore",
    "SamplingOptions",
    "TargetChoice",
    "TargetScore",
    "Verdict",
    "choose_for_target",
    "evaluate_prompt",
    "load_prompt",
    "optimize_with_dln1",
    "optimize_with_opt",
]
