"""Pseudonyms in the spans of OpenTelemetry."""

from __future__ import annotations

from typing import Any

from langchain_dp._util.extras import needs
from langchain_dp.rapt.pseudonyms.runnable import Pseudonymizer
from langchain_dp.redact import PrivateArgs, run_redacted

with needs("otel", "opentelemetry-sdk", why=" for a span processor"):
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Event, ReadableSpan, Span, SpanProcessor, TracerProvider
    from opentelemetry.trace import Link, Status


class PseudonymSpanProcessor(SpanProcessor):
    """Hides entities in ended spans before another processor gets them. NOT formal privacy.

    Attributes of resource and scope pass in clear.

    Args:
        processor: The processor that exports.
        pseudonymizer: Its settings and its map. None: ``Pseudonymizer()``.

    Examples:
        >>> provider.add_span_processor(PseudonymSpanProcessor(BatchSpanProcessor(OTLPSpanExporter())))
    """

    def __init__(self, processor: SpanProcessor, pseudonymizer: Pseudonymizer | None = None) -> None:
        self._inner = processor
        self._mask = (pseudonymizer or Pseudonymizer()).as_langsmith_anonymizer()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Call the other processor."""
        self._inner.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Pass on a hidden copy."""
        self._inner.on_end(run_redacted(self._masked, PrivateArgs(span)))

    def _masked(self, span: ReadableSpan) -> ReadableSpan:
        mask = self._mask
        description = span.status.description
        return ReadableSpan(
            name=mask(span.name),
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=mask(dict(span.attributes or {})),
            events=[Event(mask(one.name), mask(dict(one.attributes or {})), one.timestamp) for one in span.events],
            links=[Link(one.context, mask(dict(one.attributes or {}))) for one in span.links],
            kind=span.kind,
            status=Status(span.status.status_code, None if description is None else mask(description)),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )

    def shutdown(self) -> None:
        """Shut down the processor."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the other processor."""
        return self._inner.force_flush(timeout_millis)


class PseudonymTracerProvider(TracerProvider):
    """Puts a :class:`PseudonymSpanProcessor` around every added processor, as for Langfuse. NOT formal privacy.

    Args:
        pseudonymizer: Its settings and its map. None: ``Pseudonymizer()``.
        options: Options of ``TracerProvider``.

    Examples:
        >>> langfuse = Langfuse(tracer_provider=PseudonymTracerProvider(Pseudonymizer(terms=["Ann Smith"])))
    """

    def __init__(self, pseudonymizer: Pseudonymizer | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._pseudonymizer = pseudonymizer or Pseudonymizer()

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        """Add a wrapped processor."""
        super().add_span_processor(PseudonymSpanProcessor(span_processor, self._pseudonymizer))
