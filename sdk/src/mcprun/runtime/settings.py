"""Typed settings, from flags, environment and file in that order of weight.

A service declares a subclass of `ServiceSettings`. A field `queue_size` of the batcher is set by `--queue-size`, by
`MCPRUN_BATCHER_QUEUE_SIZE`, by `MCPRUN_QUEUE_SIZE`, by `batcher: {queue_size: ...}` in the file that `--config` names or
by `queue_size: ...` at that file's top level; the first of these that is there counts.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

MEBIBYTE = 1024 * 1024


class FileSource(PydanticBaseSettingsSource):
    """A service's section of the configuration file, over the file's top level."""

    def __init__(self, settings_cls: type[BaseSettings], path: Path | None, section: str) -> None:
        super().__init__(settings_cls)
        self._values = _read_section(path, section, set(settings_cls.model_fields)) if path else {}

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        """One value, as pydantic-settings asks for it."""
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """All values."""
        return self._values


class ServiceSettings(BaseSettings):
    """Settings that every service has."""

    service: ClassVar[str]
    """The service's name: the section of the file, and part of the names of the environment variables."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_implicit_flags=True,
        protected_namespaces=(),
    )

    config: Path | None = Field(default=None, description="A YAML file with settings")
    environment: Literal["dev", "staging", "prod"] = Field(default="dev", description="Picks the defaults of log level and sampling")
    log_level: Literal["debug", "info", "warning", "error"] | None = Field(
        default=None,
        description="The least severe log lines that are written; by default debug, info and warning for dev, staging, prod",
    )
    log_format: Literal["json", "console"] = Field(default="json", description="json for machines, console for people")
    max_message_bytes: int = Field(
        default=64 * MEBIBYTE,
        ge=MEBIBYTE,
        le=1024 * MEBIBYTE,
        description="The largest request or answer, in bytes, on every hop",
    )
    metrics_address: str = Field(
        default="", description="HOST:PORT of the Prometheus endpoint; port 0 picks a free one; empty turns it off"
    )
    otlp_endpoint: str = Field(default="", description="URL of an OTLP/gRPC collector; empty keeps traces off")
    trace_sample_ratio: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Share of new traces that are recorded; by default 1, 0.2 and 0.05 for dev, staging, prod",
    )
    drain_seconds: float = Field(
        default=20, ge=0, le=3600, description="How long accepted work may take to finish after SIGTERM, in seconds"
    )

    @property
    def effective_log_level(self) -> str:
        """The log level, by the environment where none was set."""
        return self.log_level or {"dev": "debug", "staging": "info", "prod": "warning"}[self.environment]

    @property
    def effective_sample_ratio(self) -> float:
        """The sampling ratio, by the environment where none was set."""
        if self.trace_sample_ratio is not None:
            return self.trace_sample_ratio
        return {"dev": 1.0, "staging": 0.2, "prod": 0.05}[self.environment]

    @classmethod
    def load(cls, argv: Sequence[str]) -> Self:
        """Reads the settings of this process.

        Raises SystemExit(2), after one line on stderr for each mistake, when a value is bad; SystemExit(0) on `--help`.
        """
        path = _config_path(argv, os.environ, cls.service)

        class Sourced(cls):  # type: ignore[valid-type, misc]
            @classmethod
            def settings_customise_sources(
                inner, settings_cls: type[BaseSettings], *_: Any, **__: Any
            ) -> tuple[PydanticBaseSettingsSource, ...]:
                return (
                    CliSettingsSource(settings_cls, cli_parse_args=list(argv), cli_prog_name=f"mcprun-{cls.service}"),
                    EnvSettingsSource(settings_cls, env_prefix=f"MCPRUN_{cls.service.upper()}_"),
                    EnvSettingsSource(settings_cls, env_prefix="MCPRUN_"),
                    FileSource(settings_cls, path, cls.service),
                )

        Sourced.__doc__ = cls.__doc__
        try:
            values = Sourced()
        except ValidationError as error:
            _refuse([_line(cls, problem) for problem in error.errors()])
        except (SettingsError, ConfigFileError) as error:
            _refuse([f"mcprun-{cls.service}: {error}"])
        return cls.model_construct(**{name: getattr(values, name) for name in cls.model_fields})


class ConfigFileError(Exception):
    """The configuration file cannot be read."""


def _config_path(argv: Sequence[str], environ: Mapping[str, str], service: str) -> Path | None:
    for position, argument in enumerate(argv):
        if argument == "--config" and position + 1 < len(argv):
            return Path(argv[position + 1])
        if argument.startswith("--config="):
            return Path(argument.removeprefix("--config="))
    value = environ.get(f"MCPRUN_{service.upper()}_CONFIG") or environ.get("MCPRUN_CONFIG")
    return Path(value) if value else None


def _read_section(path: Path, section: str, known: set[str]) -> dict[str, Any]:
    try:
        document = YAML(typ="safe").load(path)
    except OSError as error:
        raise ConfigFileError(f"cannot read {path}: {error.strerror}") from error
    except YAMLError as error:
        raise ConfigFileError(f"{path} is not YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigFileError(f"{path} must hold a mapping, got a {type(document).__name__}")
    own = document.get(section) or {}
    if not isinstance(own, dict):
        raise ConfigFileError(f"{path}: {section} must be a mapping, got a {type(own).__name__}")
    # The top level also holds settings of other services and of the workspace; a section is this service's alone.
    shared = {key: value for key, value in document.items() if key in known}
    return {**shared, **own}


def _line(cls: type[ServiceSettings], problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"]) or "settings"
    name = field.replace("-", "_")
    where = f"--{name.replace('_', '-')} / MCPRUN_{cls.service.upper()}_{name.upper()}"
    return f"mcprun-{cls.service}: {field}: {problem['msg']}, got {problem.get('input')!r} (set by {where} or in the file)"


def _refuse(lines: list[str]) -> NoReturn:
    for line in lines:
        print(line, file=sys.stderr)
    raise SystemExit(2)
