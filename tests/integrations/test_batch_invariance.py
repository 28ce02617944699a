"""A server that is declared batch-invariant: what refutes it, what does not, and what is said of it then."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.completion_server import CompletionServer
from langchain_dp.integrations.openai import CompletionServerEnsemble
from langchain_dp.integrations.openai.batch_invariance import COMPANY

from langchain_dp import DPICLClassifier, PrivacyBudget
from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.ports import Continuation, Decoding, MemberPrompt


def declared(server: CompletionServer, **options: Any) -> CompletionServerEnsemble:
    defaults = {"vocabulary_size": 1000, "batch_invariant": True}
    defaults |= {} if server.vllm else {"max_prompt_tokens": 1000}
    return CompletionServerEnsemble(f"{server.url}/v1", "tiny", **(defaults | options))


@pytest.mark.parametrize("leak", ["request", "batch"])
def test_a_last_bit_that_company_moves_refutes_it(leak: str) -> None:
    """If it breaks, a member's vote holds something of the members beside it, and the certificate rules it out."""
    with CompletionServer(leak=leak) as server:
        with pytest.raises(InvalidParameter, match=r"In comparison \d+ of 28, .* with 32 others got") as caught:
            declared(server)
        said = str(caught.value)
        assert "moved by up to" in said
        assert "VLLM_BATCH_INVARIANT=1 vllm serve MODEL" in said
        assert "--enable-deterministic-inference" in said
        assert len(said) < 600
        declared(server, batch_invariant=False)


def test_company_is_there_at_once_where_lists_are_refused() -> None:
    """If it breaks, a server is asked for one prompt after another, and nothing could ever differ."""
    with CompletionServer(leak="batch", lists=False) as server:
        with pytest.raises(InvalidParameter, match=r"of 16, .* side by side with 32 others"):
            declared(server)
        assert server.most > 4


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_kept_prefix_that_moves_an_answer_refutes_it(prefix_cache: bool) -> None:
    """If it breaks, an answer tells what was asked before, or prefixes of fresh salts count as kept ones."""
    with CompletionServer(vllm=True, leak="cache") as server:
        if prefix_cache:
            with pytest.raises(InvalidParameter, match=r"comparison 1 of 28, .* asked alone for the second time"):
                declared(server, prefix_cache=True)
        else:
            assert declared(server)._compared == 28


def test_an_honest_server_is_not_refuted_and_never_called_proven() -> None:
    """If it breaks, the declaration cannot be used, or a certificate says more than was seen."""
    with CompletionServer() as server:
        built = declared(server)
        asked = [body["prompt"] for body in server.completions]
        joint = [prompt for prompt in asked if isinstance(prompt, list) and len(prompt) > 2]
        assert [len(prompts) for prompts in joint] == [COMPANY + 3] * 4
        for prompts in joint:
            needle = prompts[0]
            assert [i for i, prompt in enumerate(prompts) if prompt == needle] == [0, 17, 34]
            assert asked.count(needle) == 2 + 3
            assert len({len(prompt) for prompt in prompts}) > 15
            assert max(len(prompt.split()) for prompt in prompts) == 250
        assert len({prompts[0] for prompts in joint}) == 4
        said = " ".join(built.notes)
        assert "declared batch-invariant. When the engine was made this was not refuted by 28 comparisons" in said
        assert "The server promises" in said
        assert "proven" not in said
        assert "batch-invariant" not in " ".join(declared(server, batch_invariant=False).notes)
        chain = DPICLClassifier(
            model=built,
            examples=[{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(80)],
            labels=["a", "b"],
            budget=PrivacyBudget(3.0, 1e-5),
            max_queries=10,
        )
        assert any("not refuted by 28 comparisons" in note for note in chain.certificate().notes)


def test_a_declared_server_takes_many_members_at_once() -> None:
    """If it breaks, the declaration buys nothing, or more are under way than were checked."""
    members = [Continuation(MemberPrompt("", f"word{i}", " :", i), ("x",), 0.5) for i in range(70)]
    with CompletionServer() as server:
        for in_flight, sizes in ((None, [32, 32, 6]), (50, [50, 20]), (1, [1] * 70)):
            built = declared(server, in_flight=in_flight)
            company = max(len(body["prompt"]) for body in server.completions if isinstance(body["prompt"], list)) - 3
            server.bodies.clear()
            built.next_tokens(members, Decoding())
            found = [body["prompt"] for body in server.completions]
            assert [len(some) if isinstance(some, list) else 1 for some in found] == sizes
            assert company == max(32, sizes[0])
            server.bodies.clear()
        with pytest.raises(InvalidParameter, match="in_flight"):
            declared(server, in_flight=257)


def test_prompts_of_the_check_fit_a_short_context() -> None:
    """If it breaks, a short context fails the check of an honest server."""
    with CompletionServer(vllm=True) as server:
        assert declared(server).listed_tokens == 20
        texts = [body["prompt"] for body in server.completions]
        flat = [one for text in texts for one in (text if isinstance(text, list) else [text])]
        assert max(len(text.split()) for text in flat) <= 12  # of 49 tokens


def test_what_cannot_be_compared_is_not_taken_for_equal() -> None:
    """If it breaks, a server that lists nothing, or that fails in company, passes unchecked."""
    with CompletionServer(lists_tokens=False) as server, pytest.raises(InvalidParameter, match="logprobs"):
        declared(server)
    with CompletionServer(refuse="harbor") as server, pytest.raises(ModelUnavailable, match="status 400"):
        declared(server)
