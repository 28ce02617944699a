"""The contracts, kept by CompletionServerEnsemble on a real llama.cpp server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.llama_server import llama_server

from contracts.common import asked, prompt
from contracts.labels import LabelContract
from contracts.next_token import NextTokenContract
from contracts.token_scores import TokenScoreContract

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")

from langchain_dp.integrations.openai import CompletionServerEnsemble
from langchain_dp.integrations.openai.batch_invariance import compared
from langchain_dp.integrations.openai.calls import Calls

from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Decoding


@pytest.fixture(scope="module")
def served(float16_gguf: Path) -> Iterator[CompletionServerEnsemble]:
    # One request at a time: in company this server moves log-probabilities. With kept prefixes the suite is faster.
    with (
        llama_server("smollm2", model=float16_gguf) as address,
        CompletionServerEnsemble(f"{address}/v1", "smollm2", prefix_cache=True, in_flight=1) as engine,
    ):
        yield engine


class TestCompletionServer(NextTokenContract, TokenScoreContract, LabelContract):
    """Members on a server that is asked for one after another."""

    exact = False
    remote = True
    whole = False

    @pytest.fixture
    def engine(self, served: CompletionServerEnsemble) -> CompletionServerEnsemble:
        return served

    def test_one_request_may_hold_all_members(self, engine: CompletionServerEnsemble) -> None:
        """If it breaks, a joint request mixes up members, or one that is refused silences all."""
        joint = Calls(engine._dialect, 16)
        crowd = asked([0, 1, 2])
        answers = engine.next_tokens(crowd, Decoding())
        assert joint.next_tokens(crowd[::-1], Decoding(), ("", "")) == answers[::-1]
        assert joint.next_tokens([crowd[0], *asked([self.too_long(engine)])], Decoding(), ("", "")) == [
            answers[0],
            None,
        ]

    def test_a_ban_of_several_tokens_does_not_ban_each(self, engine: CompletionServerEnsemble) -> None:
        """If it breaks, llama.cpp's server bans every token of a banned text, and votes change for nothing."""
        (free,) = engine.next_tokens(asked([0]), Decoding())
        assert engine.count_tokens(f"{free} of it") > 1
        banned = frozenset({f"{free} of it", " never heard of"})
        assert engine.next_tokens(asked([0]), Decoding(banned=banned)) == [free]

    def test_the_servers_own_defaults_are_switched_off(self, engine: CompletionServerEnsemble) -> None:
        """If it breaks, the server draws from its forty best tokens, whatever the temperature."""
        best = sorted(engine._calls.listed([prompt(0)])[0].items(), key=lambda one: -one[1])[:100]
        hot = [dataclasses.replace(asked([0])[0], draw=i / 5) for i in range(5)]
        taken = engine.next_tokens(hot, Decoding(temperature=1000.0))
        assert any(token not in dict(best) for token in taken if token is not None)

    def test_the_server_is_what_its_dialect_says(self, engine: CompletionServerEnsemble) -> None:
        """If it breaks, the server has changed, and what is sent to it no longer means what we think."""
        text = ["Label: good good good good good good good good"]

        def written(**fields: Any) -> str:
            return str(engine._dialect.request(text, **fields)[0]["text"])

        assert written() == written(repetition_penalty=1e6) == written(repeat_penalty=1e6) == " good"
        assert written(repeat_penalty=1e6, repeat_last_n=3) != " good"
        drawn = {"temperature": 3.0, "seed": 7}
        assert written(**drawn) == written(**drawn)
        together = engine._dialect.request(text * 4, **drawn)
        assert len({choice["text"] for choice in together}) == 1  # one seed for all: why members then ask alone
        assert (engine._dialect.kind, engine._dialect.lists, engine._dialect.listed) == ("llama.cpp", True, 1000)

    def test_this_server_is_refuted_with_kept_prefixes_and_without(self, engine: CompletionServerEnsemble) -> None:
        """If it breaks, the check is blind to what a real server does, or that one is batch-invariant now."""
        with pytest.raises(InvalidParameter, match=r"asked alone for the second time got .* moved by up to"):
            compared(engine._dialect, 3, 40)
        with pytest.raises(InvalidParameter, match=r"with 3 others got .* moved by up to"):
            compared(dataclasses.replace(engine._dialect, prefix_cache=False), 3, 40)
