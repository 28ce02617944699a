"""Grammars from JSON schemas, and tool calls."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from langchain_core.messages.tool import ToolCallChunk
from langchain_core.messages.tool import tool_call_chunk as call_chunk
from langchain_core.utils.function_calling import convert_to_openai_tool

from langchain_dp.errors import InvalidParameter

from .context import import_llama

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_PROBE = "name_of_a_tool"


def schema_grammar(schema: Mapping[str, Any], *, name: str = "schema") -> str:
    import_llama()
    from llama_cpp.llama_grammar import LlamaGrammar

    try:
        return str(LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)._grammar)
    except Exception as error:  # its kinds are undocumented: KeyError, ValueError, RuntimeError and others
        kind = type(error).__name__
    raise InvalidParameter(
        f"Expected {name} to be a JSON schema that llama.cpp can turn into a grammar, but it cannot ({kind}). Use "
        "plain types, enums, lists and nested objects."
    )


def openai_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    try:
        return [convert_to_openai_tool(tool) for tool in tools]
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidParameter(
            f"Expected tools to be functions, pydantic classes, JSON schemas or LangChain tools, but LangChain cannot "
            f"describe one of them ({type(error).__name__}: {error}). Give it a name and typed arguments."
        ) from None


def forced_grammar(tools: Sequence[Mapping[str, Any]], choice: object) -> str | None:
    if choice in (None, False, "auto"):
        return None
    if isinstance(choice, Mapping):
        choice = (choice.get("function") or {}).get("name")
    names = [tool["function"]["name"] for tool in tools]
    if choice not in (True, "any", "required", *names):
        raise InvalidParameter(
            f"Expected tool_choice={choice!r} to be 'auto', 'any' or the name of a tool, one of {names}."
        )
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": tool["function"].get("parameters") or {"type": "object", "properties": {}},
            },
            "required": ["name", "arguments"],
        }
        for tool in tools
        if choice in (True, "any", "required", tool["function"]["name"])
    ]
    grammar = schema_grammar(calls[0] if len(calls) == 1 else {"oneOf": calls}, name="the arguments of tools")
    one_call, count = re.subn(r"^root ::=", "one-call ::=", grammar, flags=re.MULTILINE)
    assert count == 1
    return f'root ::= "<tool_call>\\n" one-call "\\n</tool_call>"\n{one_call}'


def check_renders_tools(render: Callable[..., str], model: str) -> None:
    function = {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}]
    call = {"type": "function", "id": "call", "function": {"name": _PROBE, "arguments": {"number": 1}}}
    user = {"role": "user", "content": "text"}
    try:
        described = _PROBE in render([user], tools)
        text = render([user, {"role": "assistant", "content": "", "tool_calls": [call]}], tools)
        written = [read for read in map(_read, _CALL.findall(text)) if read == (_PROBE, {"number": 1})]
    except (TemplateError, ValueError, TypeError):
        described, written = False, []
    if not described:
        raise InvalidParameter(
            f"Expected the chat template of model={model} to render tools, but it has no place for them. Use a model "
            "that was trained to call tools, such as Qwen2.5-Instruct, or with_structured_output(), which needs no "
            "template."
        )
    if not written:
        raise InvalidParameter(
            f'Expected the chat template of model={model} to write a call as <tool_call>{{"name": ..., '
            '"arguments": ...}</tool_call>, the one form that ChatLlamaCpp reads. Use such a model (Qwen2.5, Qwen3, '
            "Hermes), or with_structured_output(), which needs no template."
        )


def read_calls(text: str) -> tuple[str, list[ToolCallChunk]]:
    """LangChain lists malformed calls as invalid."""
    chunks = []
    for place, raw in enumerate(_CALL.findall(text)):
        read = _read(raw)
        name, arguments = (None, raw.strip()) if read is None else (read[0], json.dumps(read[1]))
        chunks.append(call_chunk(name=name, args=arguments, id=f"call_{uuid.uuid4().hex}", index=place))
    return _CALL.sub("", text).strip() if chunks else text, chunks


def _read(raw: str) -> tuple[str, dict[str, Any]] | None:
    try:
        call = json.loads(raw)
        name, arguments = call["name"], call.get("arguments") or {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None
