"""Kinds of values in files that people write. Scalars are strict: `"5"` is no number and `1` is not true."""

import stat
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Strict, Tag, ValidationInfo

from mcprun.document import Document, shown
from mcprun.mistakes import Mistake

Text = Annotated[str, Strict(), Field(min_length=1)]
Flag = Annotated[bool, Strict()]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Positive = Annotated[int, Strict(), Field(gt=0, le=1_000_000)]

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
Name = Annotated[str, Strict(), Field(pattern=NAME_PATTERN)]


def _one_or_pair(value: Any) -> str:
    return "pair" if isinstance(value, list | tuple) else "one"


Size = Annotated[
    Annotated[Positive, Tag("one")] | Annotated[tuple[Positive, Positive], Tag("pair")],
    Discriminator(_one_or_pair),
]
"""Pixels: one number, or height and width."""


def _inside(value: str, info: ValidationInfo) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts:
        raise Mistake("a path inside the model's folder")
    if isinstance(info.context, Document):
        folder = info.context.file.parent
        try:
            mode = (folder / path).stat().st_mode
        except FileNotFoundError:
            raise Mistake(f"a file in {folder}", f"{shown(value)}, which does not exist") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise Mistake(f"a file in {folder}", f"{shown(value)}: {str(reason).lower()}") from None
        if stat.S_ISDIR(mode):
            raise Mistake("a file", f"{shown(value)}, which is a folder")
    return value


InsidePath = Annotated[Text, AfterValidator(_inside)]
"""A file in the model's folder, which must exist when the value comes out of a document. A symbolic link may lead elsewhere."""
