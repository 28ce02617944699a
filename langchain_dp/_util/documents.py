"""JSON documents that are stored or sent: read under a form, and refused in one line that shows nothing of them.

A module that reads none must not import this one: pydantic takes a while to load where LangChain has not loaded it yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pydantic

from langchain_dp.errors import InvalidParameter


class Form(pydantic.BaseModel):
    """Base of the forms of documents: each field of its own type, exactly, and no field that is not named."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """The document in ``text``.

        Raises:
            ValueError: It is none. One line says which field is wrong and what it must be, never what is there.
        """
        try:
            return cls.model_validate_json(text)
        except pydantic.ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        # Further parts of the place may be keys of a mapping, and the name of an unknown field is not ours either.
        place = [] if wrong["type"] == "extra_forbidden" else [str(part) for part in wrong["loc"][:1]]
        place += [f"at {part}" for part in wrong["loc"][1:2] if isinstance(part, int)]
        raise ValueError(" ".join([*place, wrong["msg"][:1].lower() + wrong["msg"][1:]]))


class FileForm(Form):
    """Base of the forms of files, which say themselves of which format they are."""

    format: str

    @classmethod
    def load(cls, path: Path, form: str) -> Self:
        """The document in the file at ``path``, of the format ``form``."""
        try:
            found = cls.read(path.read_bytes())
            why = "" if found.format == form else "it is of another format"
        except OSError as error:
            raise InvalidParameter(
                f"Expected {str(path)!r} to be a file that can be read ({type(error).__name__})."
            ) from None
        except ValueError as error:
            why = str(error)
        if why:
            raise InvalidParameter(
                f"Expected {str(path)!r} to hold {form!r}: {why}. It is damaged, or of another version."
            )
        return found
