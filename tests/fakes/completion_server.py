"""A completions server on loopback that writes its prompt's last word again, and echoes prompts in a header."""

from __future__ import annotations

import json
import math
import threading
import time
from typing import Any

from fakes._http import Answer, RecordingServer

LISTED = {" positive": math.log(0.4), " neg": math.log(0.2), " ": math.log(0.1), "\n": math.log(0.05), "": -5.0}


class CompletionServer(RecordingServer):
    """Serves the model "tiny".

    Args:
        vllm: Say so, and tell the length of the context, count tokens, and refuse to list more than 20.
        lists: Take several prompts in one request.
        lists_tokens: List log-probabilities at all.
        refuse: A prompt that holds this is answered with status 400, quoting it.
        status: Status of every completion.
        answer: Fields that replace those of every choice.
        leak: What moves log-probabilities by their last bit: "request" for company in one request, "batch" for
            requests that are there at once, "cache" for a prompt that was asked before under the same salt.
        kind: Who it says that it is, instead.
    """

    def __init__(
        self,
        *,
        vllm: bool = False,
        lists: bool = True,
        lists_tokens: bool = True,
        refuse: str = "\0",
        status: int = 200,
        answer: dict[str, Any] | None = None,
        leak: str = "",
        kind: str | None = None,
    ) -> None:
        self.vllm, self.lists, self.lists_tokens = vllm, lists, lists_tokens
        self.refuse, self.status, self.answer = refuse, status, answer or {}
        self.leak, self.kind = leak, kind
        self.most, self._here, self._seen, self._lock = 0, 0, set[tuple[str, str]](), threading.Lock()
        super().__init__(self._serve)

    @property
    def completions(self) -> list[dict[str, Any]]:
        """Bodies of all completion requests so far, oldest first."""
        split = [body.decode().split("\n", 1) for body in self.bodies]
        return [json.loads(body) for path, body in split if path.endswith("/completions")]

    def _serve(self, path: str, body: bytes) -> Answer:
        asked = json.loads(body) if body else {}
        if path == "/v1/models":
            return self._json({"data": [{"id": "tiny", **self._told()}]})
        if path == "/tokenize" and self.vllm:
            return self._json({"tokens": [len(word) for word in asked["prompt"].split()]})
        if path != "/v1/completions":
            return 404, {}, b"no such place"
        prompts = asked["prompt"] if isinstance(asked["prompt"], list) else [asked["prompt"]]
        if self.status != 200 or any(self.refuse in prompt for prompt in prompts):
            return self._json({"error": f"bad prompt: {prompts}"}, self.status if self.status != 200 else 400)
        if isinstance(asked["prompt"], list) and not self.lists:
            return self._json({"error": f"one prompt only: {prompts}"}, 422)
        if asked.get("logprobs", 0) > (20 if self.vllm else 5):
            return self._json({"error": "too many logprobs"}, 400)
        choices = self._evaluated(prompts, asked)
        usage = {"prompt_tokens": sum(len(prompt.split()) for prompt in prompts)}
        return self._json({"choices": choices[::-1], "usage": usage}, echo=prompts[0])

    def _evaluated(self, prompts: list[str], asked: dict[str, Any]) -> list[dict[str, Any]]:
        with self._lock:
            self._here += 1
            self.most = max(self.most, self._here)
        if self.leak == "batch":
            time.sleep(0.02)  # as a server that waits for more
        keys = {(prompt, str(asked.get("cache_salt"))) for prompt in prompts}
        with self._lock:
            moved = {"request": len(prompts) > 1, "batch": self._here > 1, "cache": bool(keys & self._seen)}.get(
                self.leak, False
            )
            self._seen |= keys
        choices = [self._choice(i, prompt, asked) for i, prompt in enumerate(prompts)]
        for choice in choices if moved else []:
            for row in choice.get("logprobs", {}).get("top_logprobs", []):
                row.update({text: math.nextafter(value, 0) for text, value in row.items()})
        with self._lock:
            self._here -= 1
        return choices

    def _told(self) -> dict[str, Any]:
        return {"owned_by": "vllm", "max_model_len": 50} if self.vllm else {"owned_by": self.kind or "somebody"}

    def _choice(self, index: int, prompt: str, asked: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "text": f" {prompt.split()[-1]}", "finish_reason": "length"}
        if asked.get("logprobs") and self.lists_tokens:
            rare = {f" rare{i}": -9.0 - i for i in range(asked["logprobs"] - len(LISTED))}
            choice["logprobs"] = {"top_logprobs": [LISTED | rare], "tokens": ["?"], "token_logprobs": [-1.0]}
        return choice | self.answer

    @staticmethod
    def _json(answer: Any, status: int = 200, echo: str = "") -> Answer:
        headers = {"Content-Type": "application/json", "X-Echo": "".join(c for c in echo if c.isalnum() or c in " -")}
        return status, headers, json.dumps(answer).encode()
