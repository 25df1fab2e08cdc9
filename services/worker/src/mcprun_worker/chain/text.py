"""Text to tokens, by Hugging Face's tokenizers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from mcprun.errors import InvalidInput
from mcprun.model.steps import Tokenize
from mcprun_worker.backends.base import Array

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class TextTokenizer:
    """A tokenizer.json, with truncation."""

    def __init__(self, step: Tokenize, folder: Path) -> None:
        path = folder / step.tokenizer
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise InvalidInput(f"{step.tokenizer} is no tokenizer: {error}") from error
        self._tokenizer.enable_truncation(step.max_length)
        padding = self._tokenizer.padding or {}
        self._pad_id = int(padding.get("pad_id", 0))
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str]) -> dict[str, Array]:
        """INT64 arrays [texts, tokens], padded to the longest text."""
        encodings = self._tokenizer.encode_batch(list(texts))
        # At least one token, so that neither a batch of no texts nor one of empty texts has an axis of no extent.
        longest = max((1, *(len(encoding.ids) for encoding in encodings)))
        ids = np.full((len(encodings), longest), self._pad_id, np.int64)
        mask = np.zeros_like(ids)
        types = np.zeros_like(ids)
        for row, encoding in enumerate(encodings):
            count = len(encoding.ids)
            ids[row, :count] = encoding.ids
            mask[row, :count] = encoding.attention_mask
            types[row, :count] = encoding.type_ids
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def text_of(element: bytes) -> str:
    """One BYTES element as text. Raises InvalidInput."""
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"UTF-8 text is expected, byte {error.start} is not") from None
