"""What a model's keys and values look like, and how large a slot is."""

from dataclasses import dataclass

from mcprun.errors import InvalidInput

BUCKETS = (128, 512, 2048, 8192)
"""Tokens that the slots of each bucket hold."""

PAGE_BYTES = 4096
ALIGNMENT_BYTES = 256
"""Every head's keys and values begin at a multiple of it."""

ITEMSIZE = {"FP32": 4, "FP16": 2, "BF16": 2, "INT8": 1}

_MAX_EXTENT = 65_536


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of a model's keys and values.

    In a slot lie, for each layer, the keys and then the values, each as one array [kv_heads, tokens, head_size], since that is
    what ONNX Runtime's GroupQueryAttention reads and writes in place. So a head's rows are contiguous, and filling them with
    tokens commits pages one after another: the waste of a live sequence is less than one page for each head, for keys and for
    values. With FP32 and heads of 64 elements a page holds 16 tokens; from 128 tokens on that is at most 12.5 %.
    """

    layers: int
    kv_heads: int
    head_size: int
    datatype: str

    def __post_init__(self) -> None:
        """Raises InvalidInput when it cannot be laid out."""
        for name, value in (("layers", self.layers), ("kv_heads", self.kv_heads), ("head_size", self.head_size)):
            if not 1 <= value <= _MAX_EXTENT:
                raise InvalidInput(f"geometry.{name}: 1 to {_MAX_EXTENT} expected, got {value}")
        if self.datatype not in ITEMSIZE:
            raise InvalidInput(f"geometry.datatype: one of {', '.join(ITEMSIZE)} expected, got {self.datatype!r}")
        rows = BUCKETS[0] * self.token_bytes
        if rows % PAGE_BYTES:
            raise InvalidInput(
                f"geometry: {BUCKETS[0]} tokens of a head must fill whole pages of {PAGE_BYTES} bytes, "
                f"but head_size {self.head_size} of {self.datatype} makes {rows}"
            )

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one head, for keys or for values."""
        return self.head_size * ITEMSIZE[self.datatype]

    @property
    def heads(self) -> int:
        """Heads of all layers, those of keys and those of values."""
        return 2 * self.layers * self.kv_heads

    def slot_bytes(self, tokens: int) -> int:
        """The extent of a slot for so many tokens."""
        return self.heads * tokens * self.token_bytes
