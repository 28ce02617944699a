"""The report as one HTML page: no script, no request, readable in light and dark, on a phone and on paper."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from langchain_dp.audit.report import Plan, Release, Report
from langchain_dp.audit.report.plot import spent_over_time
from langchain_dp.audit.report.results import AttackResult
from langchain_dp.audit.report.style import STYLE

_DIGITS = 5
_SETTING_DIGITS = 4
_NUMBERS = {"Used", "Left", "Guessing", "Allowed", "Attempts"}

_COMPARED = (
    "An attack that fails proves nothing: a better one may not. Allowed is the largest success that the promise of "
    "what was attacked leaves possible, where the attack states one; the others are compared with guessing only."
)
_ALARM = (
    "Either what was attacked does not keep its promise, or the attack was run on another chain, with other settings "
    "or other data than it states. This ledger cannot tell which: it counts what was released through it. The interval "
    "of 95% lies above the promise by chance in one of forty attacks on sound code; repeat the attack with more runs. "
    "Until this is explained, do not rely on the promise."
)


_TITLE = "Privacy report: "


def is_page(path: Path) -> bool:
    """Whether a file begins like a report, of whatever ledger."""
    with path.open("rb") as file:
        return f"<title>{_TITLE}".encode() in file.read(1000)


def page(report: Report) -> str:
    """The whole page."""
    metric = report.unit == "eta"
    title = f"{_TITLE}{report.file}"
    body = [
        f"<header><h1>{_text(title)}</h1><p class='sub'>{_text(report.kind)}, read {_moment(report.read)} with "
        f"langchain-dp {_text(report.library)}</p></header>",
        _alarm(report.attacks),
        _summary(report),
        _section("Spent over time", _curve(report)),
        _section("What was released", _plans(report)),
        _section("In plain words", _meaning(report)),
    ]
    if report.attacks:
        body.append(_section("Attacks", _attacks(report)))
    body.append(_section("What is NOT protected", f"<ul>{''.join(f'<li>{_text(each)}</li>' for each in report.limits)}"
                         "</ul>"))  # fmt: skip
    body.append(
        "<footer><p>This page holds public parameters, counts and times, and no text of any record. "
        + (
            "Accounts of users and documents are kept as keyed hashes and are not shown."
            if metric
            else "Spent is what the releases so far cost inside their plans; reserved is the promise, whatever is "
            "released under the plans from now on. The two are never added."
        )
        + "</p></footer>"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _summary(report: Report) -> str:
    if report.unit == "eta":
        cards = [
            ("Most by one user", _number(report.spent[0]), f"eta, of {_number(report.budget[0])}"),
            ("Most by one document", _number(report.spent[1]), f"eta, of {_number(report.budget[1])}"),
            ("Releases", f"{report.total:,}", "texts sanitised"),
        ]
    else:
        cards = [
            ("Budget", _number(report.budget[0]), f"epsilon, at delta {report.budget[1]:.3g}"),
            ("Reserved", _number(report.reserved[0]), f"epsilon, at delta {report.reserved[1]:.3g}"),
            ("Spent so far", _number(report.spent[0]), f"epsilon, at delta {report.spent[1]:.3g}"),
            ("Left to reserve", _number(max(report.budget[0] - report.reserved[0], 0.0)), "epsilon"),
        ]
    shown = "".join(
        f"<div class='card'><span>{_text(name)}</span><b>{_text(value)}</b><small>{_text(note)}</small></div>"
        for name, value, note in cards
    )
    rows = [("Looks alike", report.neighbors), ("Ledger made", _moment(report.made))]
    rows += [("Releases so far", f"{report.total:,}")] if report.kind == "ledger" else []
    rows += list(report.facts)
    facts = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in rows)
    return f"<section class='cards'>{shown}</section><dl>{facts}</dl>"


def _curve(report: Report) -> str:
    if not report.curve:
        return "<p>Nothing was released yet.</p>"
    if report.unit == "eta":
        users = report.spent[0] > 0
        whose = "user" if users else "document"
        lines = [(f"limit of a {whose}", report.budget[0 if users else 1], "budget")]
        unit, said = "eta", f"The largest account of any {whose}."
    else:
        lines = [("budget", report.budget[0], "budget"), ("reserved", report.reserved[0], "reserved")]
        if math.isclose(report.reserved[0], report.budget[0], rel_tol=1e-6):
            lines = [("budget, all of it reserved", report.budget[0], "budget")]
        unit, said = "epsilon", "What is left of the budget is the distance to its line."
    plot = spent_over_time(report.curve, begins=report.made, lines=lines, unit=unit)
    return f"<figure>{plot}<figcaption>{_text(said)}</figcaption></figure>"


def _plans(report: Report) -> str:
    if not report.plans:
        return "<p>No plan is reserved, and nothing was released.</p>"
    return "".join(_plan(plan, metric=report.unit == "eta") for plan in report.plans)


def _plan(plan: Plan, *, metric: bool) -> str:
    if metric:
        head = f"<h3>{_text(plan.name)}</h3>"
    else:
        head = (
            f"<h3>Plan {_text(plan.name)}</h3><p class='sub'>reserved {_moment(plan.made)}: epsilon "
            f"{_number(plan.epsilon)}, delta {plan.delta:.3g}; spent epsilon {_number(plan.spent)}</p>"
        )
    names = ["Mechanism", "Parameters", "Used", *([] if metric else ["Left"]), "First and last", "Asked for by"]
    rows = "".join(_release(release, names, metric=metric) for release in plan.releases)
    heads = "".join(f"<th scope='col'>{name}</th>" for name in names)
    return f"{head}<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _release(release: Release, names: Sequence[str], *, metric: bool) -> str:
    left = [] if metric or release.most is None else [f"{release.most - release.used:,} of {release.most:,}"]
    when = "never" if not release.first else _moment(release.first)
    if release.last != release.first:
        when += f" to {_moment(release.last)}"
    chains = ", ".join(f"{_text(name)} ({count:,})" for name, count in release.chains.items()) or "nobody"
    cells = [
        _text(release.mechanism),
        _text(release.parameters),
        f"{release.used:,}",
        *left,
        when,
        chains,
    ]
    return "<tr>" + "".join(_cell(name, cell) for name, cell in zip(names, cells, strict=True)) + "</tr>"


def _cell(name: str, content: str) -> str:
    """A cell; on a phone its name stands before it."""
    number = " class='n'" if name in _NUMBERS else ""
    return f"<td{number} data-name='{name}'><span>{content}</span></td>"


def _meaning(report: Report) -> str:
    said = dict.fromkeys(release.meaning for plan in report.plans for release in plan.releases)
    return f"<p>{_text(report.meaning)}</p>" + _list(said)


def _list(items: Iterable[str]) -> str:
    found = "".join(f"<li>{_text(item)}</li>" for item in items)
    return f"<ul>{found}</ul>" if found else ""


def _attacks(report: Report) -> str:
    rows = []
    for attack in report.attacks:
        settings = ", ".join(f"{_text(name)} {_text(_setting(value))}" for name, value in attack.settings.items())
        verdict = "better than guessing" if attack.better else "no better than guessing"
        if attack.contradicts:
            verdict = "better than its promise allows"
        bound = "none stated" if attack.bound is None else f"{attack.bound:.3f}"
        cells = [
            ("Attack", _text(attack.name) + (f"<br><small>{settings}</small>" if settings else "")),
            ("Success", f"{attack.rate:.3f} <small>[{attack.low:.3f}, {attack.high:.3f}]</small>"),
            ("Guessing", f"{attack.baseline:.3f}"),
            ("Allowed", bound),
            ("Attempts", f"{attack.n:,}"),
            ("Verdict", f"<span class='{'bad' if attack.better else 'good'}'>{verdict}</span>"),
        ]
        rows.append("<tr>" + "".join(_cell(name, cell) for name, cell in cells) + "</tr>")
    names = ("Attack", "Success", "Guessing", "Allowed", "Attempts", "Verdict")
    heads = "".join(f"<th scope='col'>{name}</th>" for name in names)
    return (
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"<p class='sub'>{_text(_COMPARED)}</p>"
    )


def _alarm(attacks: Sequence[AttackResult]) -> str:
    """What contradicts a promise, in a box that nobody overlooks; nothing where nothing does."""
    found = [attack for attack in attacks if attack.contradicts]
    if not found:
        return ""
    said = _list(
        f"{attack.name}: success {attack.rate:.3f}, at least {attack.low:.3f} by its interval; its promise allows "
        f"{attack.bound:.3f} at most."
        for attack in found
    )
    return f"<section class='alarm'><h2>An attack contradicts a promise</h2>{said}<p>{_text(_ALARM)}</p></section>"


def _setting(value: float | int | str | bool | None) -> str:
    """A value as people read it: four digits of a number that has more."""
    return f"{value:.{_SETTING_DIGITS}g}" if isinstance(value, float) else str(value)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{content}</section>"


def _text(value: str) -> str:
    """Escaped, on one line; a negative exponent stays with its number."""
    line = "".join(letter if letter.isprintable() else " " for letter in value)
    return html.escape(re.sub(r"(?<=\de)-(?=\d)", "\u2011", line), quote=True)


def _moment(time: str) -> str:
    """A time as people read it, to the second."""
    return _text(time[:19].replace("T", " ")) + " UTC"


def _number(value: float) -> str:
    return "no limit" if math.isinf(value) else f"{value:.{_DIGITS}g}"
