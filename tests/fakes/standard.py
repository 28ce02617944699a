"""What LangChain's own suites of tests are told about chat models that release a text and nothing else."""

from __future__ import annotations


class TextsOnly:
    """No tools, no images, no JSON mode, no objects with fields; and the certificate's model is no call's to choose."""

    has_tool_calling = property(lambda self: False)
    has_tool_choice = property(lambda self: False)
    has_structured_output = property(lambda self: False)
    supports_json_mode = property(lambda self: False)
    supports_model_override = property(lambda self: False)
