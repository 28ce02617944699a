"""Fewer threads compute while other processes want the cores, and it changes no bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble, batch_check, threads
from langchain_dp.integrations.llama_cpp.context import import_llama
from langchain_dp.integrations.llama_cpp.threads import Threads, steps_below

from langchain_dp.ports import MemberPrompt

PROMPTS = [MemberPrompt("Praise or complaint?\n", f"A note {i}: praise\n" * 9, "It hurt:", ("m", i)) for i in range(3)]
WORDS = [" praise", " complaint"]


class Machine:
    """Clocks of a machine on which threads get a share of their time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = self.computed = 0.0
        self.count = 0
        monkeypatch.setattr(threads.time, "perf_counter", lambda: self.passed)
        monkeypatch.setattr(threads.time, "process_time", lambda: self.computed)

    def compute(self, watched: Threads, cores: float, seconds: float = 0.25) -> int:
        """The number of threads after a computation on so many cores, which others leave."""
        with watched.watched():
            self.passed += seconds
            self.computed += seconds * min(cores, self.count)
        return self.count


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with monkeypatch.context() as patched:
        yield Machine(patched)


def test_threads_give_way_to_others_and_come_back(machine: Machine) -> None:
    """If it breaks, every step beside one busy process takes four times as long, or stays slow when it has gone."""
    watched = Threads(lambda count: setattr(machine, "count", count))
    watched.use(8, steps_below(8))
    assert [machine.compute(watched, 8) for _ in range(60)] == [8] * 60
    assert [machine.compute(watched, 4) for _ in range(6)] == [7, 6, 4, 4, 4, 4]
    beside = [machine.compute(watched, 4) for _ in range(100)]
    assert set(beside) == {4, 6}  # one step up is tried now and then, for one computation
    assert 4 <= beside.count(6) <= 6
    after = [machine.compute(watched, 8) for _ in range(100)]
    assert after == sorted(after)
    assert after[-1] == 8


def test_short_computations_are_judged_together(machine: Machine) -> None:
    """If it breaks, one late interrupt in a batch of a millisecond takes a thread away."""
    watched = Threads(lambda count: setattr(machine, "count", count))
    watched.use(2, [1])
    assert machine.compute(watched, 0.1, 0.001) == 2
    assert [machine.compute(watched, 2, 0.001) for _ in range(250)] == [2] * 250


def test_one_thread_is_the_least(machine: Machine) -> None:
    """If it breaks, a machine that is busy all over ends the run."""
    watched = Threads(lambda count: setattr(machine, "count", count))
    watched.use(2, steps_below(2))
    assert [machine.compute(watched, 0.2) for _ in range(5)] == [1] * 5
    watched.use(1)
    assert [machine.compute(watched, 0.2) for _ in range(5)] == [1] * 5


@pytest.mark.parametrize(
    ("most", "below"), [(1, []), (2, [1]), (3, [1, 2]), (4, [1, 2, 3]), (8, [1, 2, 4, 6, 7]), (64, [1, 16, 32, 48, 63])]
)
def test_steps_go_down_to_one(most: int, below: list[int]) -> None:
    """If it breaks, start-up checks dozens of numbers on a large machine, or one busy core costs half of it."""
    assert steps_below(most) == below


@pytest.fixture
def two(model_path: str) -> Iterator[LlamaCppEnsemble]:
    with LlamaCppEnsemble(model_path=model_path, slots=4, max_tokens=512, n_threads=2) as engine:
        yield engine


def test_threads_that_leave_in_the_middle_change_no_score(
    two: LlamaCppEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, an answer depends on what else ran on the machine when it was given."""
    set_to: list[int] = []
    apply = two._context.threads._apply
    monkeypatch.setattr(two._context.threads, "_apply", lambda count: (set_to.append(count), apply(count)))
    expected = two.score_labels(PROMPTS, WORDS)
    assert None not in expected
    two.forget(*(prompt.member for prompt in PROMPTS))
    monkeypatch.setattr(threads, "_JUDGED", 0.0)
    monkeypatch.setattr(threads, "_GIVEN", 2.0)  # nobody ever gets that
    assert two.score_labels(PROMPTS, WORDS) == expected
    assert set_to[-1] == 1
    assert two.n_threads == 2


def test_a_number_of_threads_that_changes_bits_is_never_taken(model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it breaks, one long record takes a thread away and with it another member's vote."""
    real = batch_check.JointEvaluator.vectors

    def planted(self: Any, *args: Any, **kwargs: Any) -> Any:
        rows = real(self, *args, **kwargs)
        inside = self._context.threads
        return [row + (inside._allowed[inside._at] == 2) * 1e-6 for row in rows]

    monkeypatch.setattr(batch_check.JointEvaluator, "vectors", planted)
    with LlamaCppEnsemble(model_path=model_path, slots=4, max_tokens=256, n_threads=4) as engine:
        assert engine._context.threads._allowed == [1, 3, 4]


@pytest.mark.parametrize(("layers", "build", "allowed"), [(0, False, [1, 2]), (0, True, [2]), (1, False, [2])])
def test_threads_beside_a_gpu_stay(
    layers: int, build: bool, allowed: list[int], model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it breaks, threads that wait for a GPU are taken for threads that others keep off their cores."""
    monkeypatch.setattr(import_llama(), "llama_supports_gpu_offload", lambda: build)
    with LlamaCppEnsemble(model_path=model_path, slots=2, max_tokens=256, n_threads=2, n_gpu_layers=layers) as engine:
        assert engine._context.threads._allowed == allowed
