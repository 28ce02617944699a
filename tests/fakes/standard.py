"""What LangChain's own suites of tests are told about chat models that release a text and nothing else."""

from __future__ import annotations


class TextsOnly:
    """No tools, no images, no JSON mode, no schema with fields, and no other model by a call."""

    @property
    def has_tool_calling(self) -> bool:
        """No: a tool call is more than a released text."""
        return False

    @property
    def has_tool_choice(self) -> bool:
        """No: there are no tools."""
        return False

    @property
    def has_structured_output(self) -> bool:
        """Not the suites' kind: they ask for objects with fields."""
        return False

    @property
    def supports_json_mode(self) -> bool:
        """No: what is released is no JSON object."""
        return False

    @property
    def supports_model_override(self) -> bool:
        """No: the certificate names the model that the chain was built with."""
        return False
