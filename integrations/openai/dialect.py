"""Differences between completions servers, probed on public text.

llama.cpp's server (release 2026.10 of xllamacpp):

- A list of prompts has one seed.
- ``repetition_penalty`` is ignored. ``repeat_last_n`` counts from the prompt's end.
- ``logit_bias`` bans every token of a text.
- Default cuts (top-k 40, top-p 0.95, min-p 0.05) must be switched off.
- Listed log-probabilities precede penalty, bias and temperature.

vLLM's ``repetition_penalty`` also weighs the prompt. vLLM and SGLang share prefixes within one ``cache_salt``.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_dp.errors import InvalidParameter, ModelUnavailable
from langchain_dp.ports import Decoding

from .._engine import ENDS
from .http import Server, ServerError

END = ""

_PUBLIC = ("The market opens at eight. Bread is sold near the", "Water boils at a lower temperature on a")
LISTED = (1000, 100, 20, 5)
_SEEDS = 2**31

Choice = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Dialect:
    """Facts about one server, None if unreported.

    ``lists``: a request may hold several prompts. ``listed``: tokens with log-probabilities. ``salt`` hides kept
    prefixes from other clients.
    """

    server: Server
    model: str
    kind: str
    vocabulary_size: int | None
    context: int | None
    lists: bool
    listed: int
    prefix_cache: bool
    salt: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16), repr=False)

    def request(self, prompts: Sequence[str], *, listed: int = 0, **fields: Any) -> list[Choice]:
        whole = [_whole(prompt) for prompt in prompts]
        body = {
            "model": self.model,
            "prompt": whole[0] if len(whole) == 1 else whole,
            "max_tokens": 1,
            "temperature": 0,
            "top_p": 1.0,
            "stream": False,
            **self._fields(),
            **fields,
        }
        if listed:
            body["logprobs"] = listed
        answer = self.server.ask("completions", body)
        try:
            choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        except (KeyError, TypeError, ValueError):
            raise ServerError("no choices") from None
        if [choice["index"] for choice in choices] != list(range(len(prompts))):
            raise ServerError("other choices")
        return choices

    def _fields(self) -> dict[str, Any]:
        """Keep defaults and caches out of an answer."""
        if self.kind == "llama.cpp":
            return {
                "cache_prompt": self.prefix_cache,
                **{"top_k": 0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0, "repeat_last_n": 0},
            }
        salt = {"cache_salt": self.salt if self.prefix_cache else secrets.token_hex(16)}
        if self.kind == "vLLM":
            return {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, **salt}
        return salt if self.kind == "SGLang" else {}

    def decoding(self, decoding: Decoding, written: Sequence[str]) -> dict[str, Any]:
        fields: dict[str, Any] = {"temperature": decoding.temperature}
        if decoding.repetition_penalty != 1:
            if self.kind == "llama.cpp":
                fields["repeat_penalty"] = decoding.repetition_penalty
                fields["repeat_last_n"] = self.count("".join(written)) if written else 0
            elif self.kind == "vLLM":
                fields["repetition_penalty"] = decoding.repetition_penalty
            else:
                raise InvalidParameter(
                    f"Expected repetition_penalty={decoding.repetition_penalty} to be 1 on a server that is neither "
                    "llama.cpp nor vLLM: it may ignore the penalty without a word. Set it to 1."
                )
        if self._tokenizes and decoding.banned:
            fields["ignore_eos"] = END in decoding.banned
            texts = [token for token in sorted(map(str, decoding.banned)) if token != END]
            ids = {text: self._tokens(text) for text in texts}
            # A text of several tokens would ban them all, so its member abstains.
            if self.kind == "llama.cpp":
                fields["logit_bias"] = [[tokens[0], False] for tokens in ids.values() if len(tokens) == 1]
            else:
                fields["logit_bias"] = {str(tokens[0]): -100 for tokens in ids.values() if len(tokens) == 1}
        return fields

    def seed(self, draw: float) -> dict[str, int]:
        return {"seed": min(int(draw * _SEEDS), _SEEDS - 1)}

    def count(self, text: str) -> int:
        if self._tokenizes:
            return len(self._tokens(text))
        if not text:
            return 0
        body = {"model": self.model, "prompt": _whole(text), "max_tokens": 1, "temperature": 0, **self._fields()}
        try:
            return int(self.server.ask("completions", body)["usage"]["prompt_tokens"])
        except (KeyError, TypeError, ValueError):
            raise ServerError("no usage") from None

    @property
    def _tokenizes(self) -> bool:
        return self.kind in ("llama.cpp", "vLLM")

    def _tokens(self, text: str) -> list[int]:
        fields: dict[str, Any] = (
            {"content": _whole(text), "add_special": False, "parse_special": False}
            if self.kind == "llama.cpp"
            else {"model": self.model, "prompt": _whole(text), "add_special_tokens": False}
        )
        try:
            return [int(token) for token in self.server.ask("/tokenize", fields)["tokens"]]
        except (KeyError, TypeError, ValueError):
            raise ServerError("no tokens") from None

    def turn(self) -> tuple[str, str]:
        stand_in = "QUESTIONANDEXAMPLES"
        try:
            asked = {"messages": [{"role": "user", "content": stand_in}]}
            before, after = str(self.server.ask("/apply-template", asked)["prompt"]).split(stand_in)
        except (ServerError, KeyError, TypeError, ValueError):
            raise InvalidParameter(
                "Expected chat_turn=(text before, text after) for chat=True, since this server does not tell its chat "
                "template. Copy it from the model's own."
            ) from None
        return before, after


def _whole(text: str) -> str:
    return text.encode(errors="replace").decode()  # servers refuse a lone surrogate


def listed(choice: Choice) -> dict[str, float]:
    found = choice.get("logprobs") or {}
    if "content" in found:
        pairs = [(one["token"], one["logprob"]) for one in found["content"][0]["top_logprobs"]]
    else:
        pairs = list((found.get("top_logprobs") or [{}])[0].items())
    finite: dict[str, float] = {}
    for token, value in pairs:
        text = END if token in ENDS else str(token)  # vLLM lists control tokens by name
        if math.isfinite(value):
            finite[text] = max(float(value), finite.get(text, -math.inf))
    return finite


def probed(server: Server, model: str, *, prefix_cache: bool) -> Dialect:
    try:
        models = server.ask("models")["data"]
        found = next((one for one in models if model in (one.get("id"), *(one.get("aliases") or ()))), None)
    except (ServerError, KeyError, TypeError):
        models, found = [], {}
    if found is None:
        names = sorted(str(one.get("id")) for one in models)
        raise InvalidParameter(f"Expected model={model!r} to be one of {names}, which this server serves.")
    kind = {"llamacpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang"}.get(str(found.get("owned_by")), "other")
    told = found.get("meta") or {}
    dialect = Dialect(
        server,
        model,
        kind,
        vocabulary_size=told.get("n_vocab"),
        context=told.get("n_ctx") if kind == "llama.cpp" else found.get("max_model_len"),
        lists=True,
        listed=0,
        prefix_cache=prefix_cache,
    )
    try:
        dialect.request(_PUBLIC)
    except ServerError:
        dialect = dataclasses.replace(dialect, lists=False)
        try:
            dialect.request(_PUBLIC[:1])
        except ServerError as problem:
            raise ModelUnavailable(
                f"The completions server does not answer public text ({problem}). Check base_url, model and api_key."
            ) from None
    for count in LISTED:
        try:
            found = len(listed(dialect.request(_PUBLIC[:1], listed=count)[0]))
        except (ServerError, LookupError, TypeError, AttributeError):
            continue
        if found:
            # Some servers list fewer, and some tokens share a text.
            return dataclasses.replace(dialect, listed=count if 2 * found > count else found)
    return dialect
