"""An OpenAI-compatible chat endpoint on loopback. It echoes the last message in a header, as some gateways do."""

from __future__ import annotations

import json

from fakes._http import Answer, RecordingServer


class OpenAIServer(RecordingServer):
    """Answers each chat completion with ``reply``, or with status 400 quoting the prompt if ``refuse``."""

    def __init__(self, reply: str = "positive", *, refuse: bool = False) -> None:
        def answer(path: str, body: bytes) -> Answer:
            request = json.loads(body)
            prompt = request["messages"][-1]["content"]
            headers = {"Content-Type": "application/json", "X-Echo": prompt.replace("\n", " ")}
            if refuse:
                error = {"error": {"message": f"bad prompt: {prompt}", "type": "invalid_request_error"}}
                return 400, headers, json.dumps(error).encode()
            completion = {
                "id": "c1",
                "object": "chat.completion",
                "created": 0,
                "model": request["model"],
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": reply}}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
            return 200, headers, json.dumps(completion).encode()

        super().__init__(answer)
