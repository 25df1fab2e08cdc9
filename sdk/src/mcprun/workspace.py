"""mcprun.yaml: what one mesh on one machine is made of."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml import YAML

from mcprun.document import ConfigError, Problem, read
from mcprun.edge.policy import load_policy
from mcprun.mistakes import validate
from mcprun.model.fields import Text, Whole

FILENAME = "mcprun.yaml"
DATA_FOLDER = ".mcprun"
MEBIBYTE = 1024 * 1024

Section = dict[str, Any]


class Edge(BaseModel):
    """Where clients reach the mesh. Other settings of the edge may stand here too."""

    model_config = ConfigDict(extra="allow", frozen=True)

    host: Text = Field(default="127.0.0.1", description="The address to listen at; 0.0.0.0 lets other machines in")
    port: Annotated[Whole, Field(ge=1, le=65_535)] = Field(default=8080, description="One port for HTTP/1.1, HTTP/2 and gRPC")
    policy: str = Field(default="", description="A file with the edge filter's policy, in the workspace; empty: all defaults")


class Workspace(BaseModel):
    """mcprun.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Text = Field(default="2026.3.1", description="The version of mcprun that the workspace was made for")
    edge: Edge = Field(default_factory=Edge, description="Where clients reach the mesh")
    models: Text = Field(default="models", description="The model repository: a folder with a folder for each model")
    workers: Annotated[Whole, Field(ge=1, le=64)] = Field(default=1, description="How many worker processes run models")
    default_model: str = Field(default="", description="The model of POST /v1/infer requests that name none")
    environment: Literal["dev", "staging", "prod"] = Field(default="dev", description="Picks the defaults of log level and sampling")
    log_level: Literal["debug", "info", "warning", "error"] | None = Field(
        default=None, description="The least severe log lines that are written; left out: by environment"
    )
    max_message_bytes: Annotated[Whole, Field(ge=MEBIBYTE, le=1024 * MEBIBYTE)] = Field(
        default=64 * MEBIBYTE, description="The largest request or answer, in bytes"
    )
    otlp_endpoint: str = Field(default="", description="URL of an OTLP/gRPC collector for traces; empty: none")
    router: Section = Field(default_factory=dict, description="More settings of the router")
    batcher: Section = Field(default_factory=dict, description="More settings of the batcher")
    worker: Section = Field(default_factory=dict, description="More settings of the workers")
    kvcache: Section = Field(default_factory=dict, description="More settings of the kvcache")

    def services_config(self) -> dict[str, Any]:
        """What every service is given as its configuration file."""
        values: dict[str, Any] = {
            "environment": self.environment,
            "max_message_bytes": self.max_message_bytes,
            "otlp_endpoint": self.otlp_endpoint,
            "edge": {**({"policy": self.edge.policy} if self.edge.policy else {}), **(self.edge.model_extra or {})},
            "router": {"default_model": self.default_model, **self.router},
            "batcher": self.batcher,
            "worker": self.worker,
            "kvcache": self.kvcache,
        }
        if self.log_level is not None:
            values["log_level"] = self.log_level
        return values

    def write_services_config(self, path: Path) -> None:
        """Writes it as YAML."""
        with path.open("w", encoding="utf-8") as file:
            YAML(typ="safe", pure=True).dump(self.services_config(), file)


def load_workspace(path: Path) -> Workspace:
    """Reads a mcprun.yaml. Raises ConfigError, which tells every mistake by file, line, column and field."""
    document = read(path, may_be_empty=True)
    # A section whose lines are all comments reads as nothing, and means nothing.
    values = {key: value for key, value in document.values.items() if value is not None or key not in Workspace.model_fields}
    problems: list[Problem] = []
    for key in [key for key in values if key.startswith("x-")]:
        # Free for anchors and notes.
        del values[key]
    workspace = validate(document, Workspace, values, problems=problems)
    folder = path.absolute().parent / workspace.models
    if not folder.is_dir():
        raise ConfigError([document.problem(("models",), "a folder", f"{str(folder)!r}, which does not exist")])
    if not workspace.edge.policy:
        return workspace
    policy = path.absolute().parent / workspace.edge.policy
    if not policy.is_file():
        raise ConfigError([document.problem(("edge", "policy"), "a file", f"{str(policy)!r}, which does not exist")])
    load_policy(policy)
    return workspace.model_copy(update={"edge": workspace.edge.model_copy(update={"policy": str(policy)})})
