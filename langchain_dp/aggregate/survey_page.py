"""The survey as one HTML page: no script, no request, readable in light and dark, on a phone and on paper."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langchain_dp.aggregate.survey import Survey


def page(survey: Survey, title: str) -> str:
    """Return the whole page. Everything written into it is escaped."""
    import jinja2

    writer = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    writer.filters["percent"] = "{:.1%}".format
    writer.filters["whole"] = "{:,}".format
    # Somebody who knows all records but one tells two equally likely values of it apart this often, of 100 times.
    guesses = round(100 / (1 + math.exp(-survey.certificate.epsilon)))
    template = files(__package__).joinpath("survey_page.html.j2").read_text(encoding="utf-8")
    return writer.from_string(template).render(
        survey=survey, title=title, certificate=survey.certificate, guesses=guesses
    )
