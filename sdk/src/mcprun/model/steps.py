"""The steps of preprocess and postprocess chains. In model.yaml each is a mapping of one key, or a bare name when it takes no
options: `- resize: {size: 256}`, `- layout`.

A docstring here is the contract of its step; the worker implements it.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from mcprun.document import shown
from mcprun.mistakes import Mistake
from mcprun.model.fields import Flag, InsidePath, Number, Positive, Size, Text, Whole


class Step(BaseModel):
    """One step."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    step_name: ClassVar[str]
    shorthand: ClassVar[str | None] = None
    """The option that a plain value stands for: `cast: FP32` is `cast: {datatype: FP32}`."""


class Decode(Step):
    """An encoded image (JPEG, PNG, WebP, BMP, GIF's first frame, TIFF's first page) to uint8 pixels, height × width × channels.

    EXIF rotation is applied. 16-bit samples are scaled to 8 bits, transparency is put on black, CMYK and palettes are converted.
    """

    step_name: ClassVar[str] = "decode"
    shorthand: ClassVar[str | None] = "mode"
    kind: Literal["decode"] = "decode"
    mode: Literal["RGB", "BGR", "L"] = Field(default="RGB", description="Channel order; L is one channel of luminance")
    max_pixels: Annotated[Whole, Field(gt=0)] = Field(
        default=50_000_000, description="A larger image (width times height) is refused before it is decoded"
    )


class Resize(Step):
    """Scales uint8 pixels, bilinear with antialiasing."""

    step_name: ClassVar[str] = "resize"
    shorthand: ClassVar[str | None] = "size"
    kind: Literal["resize"] = "resize"
    size: Size = Field(description="Pixels: one number, or [height, width]")
    fit: Literal["short_side", "exact"] | None = Field(
        default=None,
        description="short_side scales the shorter side to `size` and keeps the aspect (the default for one number); "
        "exact makes it height × width",
    )

    @model_validator(mode="after")
    def _one_number_for_a_side(self) -> "Resize":
        if self.fit == "short_side" and not isinstance(self.size, int):
            raise Mistake("one number with fit: short_side", shown(self.size), below=("size",))
        return self


class Crop(Step):
    """Cuts out the centre. An image that is smaller is padded with zeros."""

    step_name: ClassVar[str] = "crop"
    shorthand: ClassVar[str | None] = "size"
    kind: Literal["crop"] = "crop"
    size: Size = Field(description="Pixels: one number, or [height, width]")


class Cast(Step):
    """Converts elements to another datatype; numbers are not scaled."""

    step_name: ClassVar[str] = "cast"
    shorthand: ClassVar[str | None] = "datatype"
    kind: Literal["cast"] = "cast"
    datatype: Literal["UINT8", "INT8", "INT32", "INT64", "FP16", "FP32", "FP64"] = Field(description="The datatype afterwards")


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _not_zero(value: float) -> float:
    if value == 0:
        raise Mistake("a number that is not 0")
    return value


class Normalize(Step):
    """(x × scale - mean) / std, for each channel, in FP32."""

    step_name: ClassVar[str] = "normalize"
    kind: Literal["normalize"] = "normalize"
    scale: Number = Field(default=1.0, description="Factor before the mean is taken off, such as 0.00392156862745098 (1/255)")
    mean: Annotated[tuple[Number, ...], BeforeValidator(_one_or_many, json_schema_input_type=Number | tuple[Number, ...])] = Field(
        default=(0.0,), min_length=1, description="One number, or one for each channel"
    )
    std: Annotated[
        tuple[Annotated[Number, AfterValidator(_not_zero)], ...],
        BeforeValidator(_one_or_many, json_schema_input_type=Number | tuple[Number, ...]),
    ] = Field(default=(1.0,), min_length=1, description="One number, or one for each channel; none may be 0")


class Layout(Step):
    """Moves the channels: CHW makes height × width × channels to channels × height × width, HWC the other way."""

    step_name: ClassVar[str] = "layout"
    shorthand: ClassVar[str | None] = "order"
    kind: Literal["layout"] = "layout"
    order: Literal["CHW", "HWC"] = Field(default="CHW", description="The order afterwards")


class Tokenize(Step):
    """UTF-8 text to token ids by a Hugging Face `tokenizer.json`.

    Gives the graph's inputs `input_ids`, `attention_mask` and `token_type_ids`, those that it has, as INT64, padded to the
    longest text of the batch.
    """

    step_name: ClassVar[str] = "tokenize"
    shorthand: ClassVar[str | None] = "tokenizer"
    kind: Literal["tokenize"] = "tokenize"
    tokenizer: InsidePath = Field(default="tokenizer.json", validate_default=True, description="The file, in the model's folder")
    max_length: Positive = Field(default=512, description="The most tokens of a text, special ones included; the rest is cut off")


class ByteWindow(Step):
    """The first and the last bytes of a file as INT32, for file-type models such as Magika's.

    Of the first `block` bytes, white space as bytes.isspace() sees it is stripped from the start when `strip` is true and
    the first `head` bytes of the rest are kept, filled up with `pad` at their end. Of the last `block` bytes, white space is
    stripped from the end, and the last `tail` bytes of the rest are kept, filled up with `pad` at their start. The two blocks
    may overlap: a file shorter than `block` is both. The result is both windows, `head` + `tail` numbers; a file that is empty
    or all white space gives `pad` throughout. What Magika's own client decides without its model (files of fewer than 8 bytes,
    scores under a threshold) is not part of this step.
    """

    step_name: ClassVar[str] = "byte_window"
    kind: Literal["byte_window"] = "byte_window"
    head: Annotated[Whole, Field(ge=0, le=1_000_000)] = Field(default=1024, description="Bytes from the start")
    tail: Annotated[Whole, Field(ge=0, le=1_000_000)] = Field(default=1024, description="Bytes from the end")
    block: Positive = Field(default=4096, description="Bytes at either end that are looked at")
    strip: Flag = Field(default=True, description="Whether white space at the ends is passed over")
    pad: Annotated[Whole, Field(ge=-(2**31), lt=2**31)] = Field(default=256, description="What stands for a byte that is not there")


class MeanPool(Step):
    """The mean of the token vectors [N, T, H] over the tokens that the attention mask keeps: [N, H]. Needs `tokenize`."""

    step_name: ClassVar[str] = "mean_pool"
    shorthand: ClassVar[str | None] = "output"
    kind: Literal["mean_pool"] = "mean_pool"
    output: Text = Field(default="embedding", description="The name of the result, in place of the token vectors")


class L2Normalize(Step):
    """Scales each row to a Euclidean length of 1; a row of zeros stays as it is."""

    step_name: ClassVar[str] = "l2_normalize"
    kind: Literal["l2_normalize"] = "l2_normalize"


class Softmax(Step):
    """Scores to probabilities, over the last axis."""

    step_name: ClassVar[str] = "softmax"
    kind: Literal["softmax"] = "softmax"


class TopK(Step):
    """Scores [N, C] to the two outputs `labels`, BYTES [N, k], and `scores`, FP32 [N, k], the best first.

    A class without a label is named by its index.
    """

    step_name: ClassVar[str] = "top_k"
    shorthand: ClassVar[str | None] = "k"
    kind: Literal["top_k"] = "top_k"
    k: Positive = Field(default=5, description="How many; at most the number of classes are given")


PREPROCESS: dict[str, type[Step]] = {step.step_name: step for step in (Decode, Resize, Crop, Cast, Normalize, Layout, Tokenize, ByteWindow)}
POSTPROCESS: dict[str, type[Step]] = {step.step_name: step for step in (MeanPool, L2Normalize, Softmax, TopK)}

PreprocessStep = Annotated[Decode | Resize | Crop | Cast | Normalize | Layout | Tokenize | ByteWindow, Field(discriminator="kind")]
PostprocessStep = Annotated[MeanPool | L2Normalize | Softmax | TopK, Field(discriminator="kind")]

SOURCES = ("decode", "tokenize", "byte_window")
"""Steps that can only come first, since they take BYTES."""
