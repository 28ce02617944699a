"""Reads JSON documents under a form. Import late: pydantic loads slowly."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pydantic

from langchain_dp.errors import InvalidParameter


class Form(pydantic.BaseModel):
    """Base of the forms: strict types, and no unknown field."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """ValueError names the field and its rule, never its value."""
        try:
            return cls.model_validate_json(text)
        except pydantic.ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        # Deeper parts of the path, and unknown fields, may be private.
        place = [] if wrong["type"] == "extra_forbidden" else [str(part) for part in wrong["loc"][:1]]
        place += [f"at {part}" for part in wrong["loc"][1:2] if isinstance(part, int)]
        raise ValueError(" ".join([*place, wrong["msg"][:1].lower() + wrong["msg"][1:]]))


class FileForm(Form):
    """Base of the forms of files."""

    format: str

    @classmethod
    def load(cls, path: Path, form: str) -> Self:
        try:
            document = cls.read(path.read_bytes())
            why = "" if document.format == form else "it is of another format"
        except OSError as error:
            raise InvalidParameter(
                f"Expected {str(path)!r} to be a file that can be read ({type(error).__name__})."
            ) from None
        except ValueError as error:
            why = str(error)
        if why:
            raise InvalidParameter(
                f"Expected {str(path)!r} to be a file of the form {form!r}, but {why}. It is damaged, another kind of "
                "file, or of another version."
            )
        return document
