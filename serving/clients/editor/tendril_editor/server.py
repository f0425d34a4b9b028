"""The language server: `textDocument/inlineCompletion` (LSP 3.18), and the command to reject."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import openai
from lsprotocol import types
from pygls.lsp.server import LanguageServer

from tendril_client import AsyncTendril, RetentionMeter, Suggestion
from tendril_editor.documents import Document

REJECT = "tendril.reject"
MAX_PREFIX_CHARS = 4_000


class TendrilServer:
    """Shows suggestions in open documents and reports what became of them."""

    def __init__(
        self, tendril: AsyncTendril, model: str, *, max_tokens: int = 32,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.lsp = LanguageServer("tendril-editor", "0.1.0")
        self.documents: dict[str, Document] = {}
        self.meter = RetentionMeter(monotonic_s)
        self._tendril, self._model, self._max_tokens = tendril, model, max_tokens
        self._monotonic_s = monotonic_s
        self._measuring: asyncio.TimerHandle | None = None
        self._register()

    def _register(self) -> None:
        """pygls looks at a handler's parameters, so each is a function of its own."""

        @self.lsp.feature(types.TEXT_DOCUMENT_DID_OPEN)
        def did_open(params: types.DidOpenTextDocumentParams) -> None:
            opened = params.text_document
            codec = self.lsp.workspace.position_codec
            self.documents[opened.uri] = Document(opened.uri, opened.text, codec)

        @self.lsp.feature(types.TEXT_DOCUMENT_DID_CHANGE)
        def did_change(params: types.DidChangeTextDocumentParams) -> None:
            self.documents[params.text_document.uri].apply(params.content_changes)
            self.measure_due()

        @self.lsp.feature(types.TEXT_DOCUMENT_DID_CLOSE)
        def did_close(params: types.DidCloseTextDocumentParams) -> None:
            self.documents.pop(params.text_document.uri).close()

        @self.lsp.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())
        async def inline_completion(
            params: types.InlineCompletionParams,
        ) -> types.InlineCompletionList:
            return await self._complete(params)

        @self.lsp.command(REJECT)
        def reject(uri: str) -> None:
            self.documents[uri].reject()

        @self.lsp.feature(types.SHUTDOWN)
        async def shutdown(params: Any) -> None:
            if self._measuring is not None:
                self._measuring.cancel()
            for document in self.documents.values():
                document.close()
            await self._tendril.close()

    async def _complete(self, params: types.InlineCompletionParams) -> types.InlineCompletionList:
        document = self.documents[params.text_document.uri]
        offset, num_changes = document.offset(params.position), document.num_changes
        try:
            text, suggestion = await self._suggest(document.text[:offset])
        except openai.OpenAIError as error:
            self._log(f"no suggestion: {error}")
            return types.InlineCompletionList(items=[])
        if not text:  # the model chose silence
            return types.InlineCompletionList(items=[])
        if document.num_changes != num_changes or not document.is_open:
            suggestion.suppressed("stale")
            return types.InlineCompletionList(items=[])
        document.show(suggestion, text, offset, self.meter, self._monotonic_s)
        return types.InlineCompletionList(items=[types.InlineCompletionItem(insert_text=text)])

    async def _suggest(self, prefix: str) -> tuple[str, Suggestion]:
        reply = await self._tendril.openai.completions.create(
            model=self._model, prompt=prefix[-MAX_PREFIX_CHARS:], max_tokens=self._max_tokens
        )
        return reply.choices[0].text, self._tendril.suggestion(reply)

    def measure_due(self) -> None:
        """Measure what is due, and come again for the rest."""
        self.meter.measure_due()
        if self._measuring is not None:
            self._measuring.cancel()
        due_s = self.meter.next_due_s
        if due_s is not None:
            wait_s = max(0.0, due_s - self._monotonic_s())
            self._measuring = asyncio.get_running_loop().call_later(wait_s, self.measure_due)

    def _log(self, message: str) -> None:
        params = types.LogMessageParams(type=types.MessageType.Warning, message=message)
        self.lsp.window_log_message(params)
