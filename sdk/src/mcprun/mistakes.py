"""What pydantic finds wrong with a document, told as problems of that document."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mcprun.document import ConfigError, Document, Location, Problem, merge, shown

ModelT = TypeVar("ModelT", bound=BaseModel)

_EXPECTED = {
    "missing": "a value",
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length} values",
    "too_long": "at most {max_length} values",
}


class Mistake(ValueError):
    """Raised by a validator: a value that its type alone does not rule out."""

    def __init__(self, expected: str, got: str | None = None, *, below: Location = (), hint: str = "") -> None:
        super().__init__(f"expected {expected}" + (f", got {got}" if got is not None else ""))
        self.expected = expected
        self.got = got
        self.below = below
        """Where under the validated value the mistake is."""
        self.hint = hint


def validate(document: Document, kind: type[ModelT], values: Mapping[str, Any], *, problems: list[Problem] | None = None) -> ModelT:
    """`values` (those of the document, normalised) as a pydantic model.

    Raises ConfigError with every mistake: the document's own, `problems`, and pydantic's. Validators find the document as
    `info.context`.
    """
    found = merge(document.problems, problems or [])
    try:
        model = kind.model_validate(values, context=document)
    except ValidationError as error:
        more = [_problem(document, details, kind) for details in error.errors() if not _follows(details)]
        raise ConfigError(merge(found, more)) from None
    if found:
        raise ConfigError(found)
    return model


def nearest(name: str, known: list[str]) -> str:
    """`did you mean ...?`, or nothing when no known name is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""


def _follows(details: ErrorDetails) -> bool:
    """Whether it only says that a list is too short without those of its items that are wrong, which are told on their own."""
    return details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]


def _problem(document: Document, details: ErrorDetails, kind: type[BaseModel]) -> Problem:
    location = _location(document, details)
    came = shown(details["input"])
    context = details.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, Mistake):
        return document.problem(document.written((*location, *cause.below)), cause.expected, cause.got or came, hint=cause.hint)
    written = document.written(location)
    if details["type"] == "extra_forbidden":
        name = str(location[-1])
        names = _field_names(kind, location[:-1])
        return document.problem(written, f"one of {', '.join(names)}" if names else "no options", repr(name), hint=nearest(name, names))
    if details["type"] == "missing":
        came = "nothing"
    template = _EXPECTED.get(details["type"])
    expected = template.format(**context) if template else details["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return document.problem(written, expected, came)


def _location(document: Document, details: ErrorDetails) -> Location:
    """Pydantic's way to the value without the names of union members, which are not in the file."""
    location: Location = ()
    *way, last = details["loc"] or ("",)
    for part in way:
        if _stands(document, (*location, part)):
            location = (*location, part)
    if _stands(document, (*location, last)) or (details["type"] == "missing" and last != ""):
        location = (*location, last)
    return location


def _stands(document: Document, location: Location) -> bool:
    length = len(location)
    return document.written(location) in document.positions or any(origin[:length] == location for origin in document.origins)


def _field_names(kind: type[BaseModel], location: Location) -> list[str]:
    """The fields that the models at a location have; shorthands that a model names in `shorthands` count as fields."""
    candidates: list[type[BaseModel]] = [kind]
    for part in location:
        below = [model for candidate in candidates for model in _below(candidate, part)]
        candidates = below or candidates
        if isinstance(part, str):
            named = [candidate for candidate in candidates if getattr(candidate, "step_name", None) == part]
            candidates = named or candidates
    names: dict[str, None] = {}
    for candidate in candidates:
        hidden = ("kind",) if hasattr(candidate, "step_name") else ()
        names.update(dict.fromkeys(name for name in (*getattr(candidate, "shorthands", ()), *candidate.model_fields) if name not in hidden))
    return list(names)


def _below(candidate: type[BaseModel], part: str | int) -> Iterator[type[BaseModel]]:
    field = candidate.model_fields.get(str(part))
    return _models(field.annotation) if field else iter(())


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
