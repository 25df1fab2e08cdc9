"""The JSON schema of model.yaml, for editors and other tools. `python -m mcprun.model.schema FILE` writes it.

It accepts what the loader accepts, except that it cannot look at the folder: names, files and the order of steps are the
loader's to check.
"""

import json
import sys
from pathlib import Path
from typing import Any

from mcprun.model.config import ModelConfig
from mcprun.model.steps import POSTPROCESS, PREPROCESS, Step

DIALECT = "https://json-schema.org/draft/2020-12/schema"
IDENTIFIER = "urn:mcprun:model.yaml:2026.3"


def model_schema() -> dict[str, Any]:
    """The schema as plain values."""
    schema = ModelConfig.model_json_schema(mode="validation")
    definitions: dict[str, Any] = schema["$defs"]
    properties: dict[str, Any] = schema["properties"]
    for step in (*PREPROCESS.values(), *POSTPROCESS.values()):
        definitions[step.__name__] = _options(definitions[step.__name__])
    properties["preprocess"] = _chain(properties["preprocess"], definitions, PREPROCESS)
    properties["postprocess"] = _chain(properties["postprocess"], definitions, POSTPROCESS)
    tensor = definitions["TensorConfig"]["properties"]
    properties["model_path"] = {**definitions["VersionConfig"]["properties"]["model_path"]}
    properties["model_path"]["description"] = "The model file, in the model's folder: one version, 1, labelled stable"
    properties["versions"] = {
        **properties["versions"],
        # YAML reads a bare 1 as a number; the loader takes either, and JSON has only text as keys.
        "propertyNames": {"pattern": "^[1-9][0-9]{0,17}$"},
    }
    properties["input_shape"] = {
        "anyOf": tensor["shape"]["anyOf"],
        "description": "Shorthand for the shape of the only input of the model file",
    }
    properties["output_names"] = {
        "type": "array",
        "items": tensor["name"],
        "minItems": 1,
        "description": "Shorthand for outputs of which only the names are told",
    }
    del schema["required"]
    return {
        "$schema": DIALECT,
        "$id": IDENTIFIER,
        **schema,
        "title": "model.yaml",
        "description": "One model of an mcprun model repository.",
        "oneOf": [{"required": ["model_path"]}, {"required": ["versions"]}],
        "not": {"anyOf": [{"required": ["inputs", "input_shape"]}, {"required": ["outputs", "output_names"]}]},
    }


def text() -> str:
    """The schema as it is published."""
    return json.dumps(model_schema(), indent=2) + "\n"


def _options(definition: dict[str, Any]) -> dict[str, Any]:
    """A step's options, without the tag that only the normalised form has."""
    options = {name: value for name, value in definition["properties"].items() if name != "kind"}
    return {**definition, "properties": options}


def _chain(schema: dict[str, Any], definitions: dict[str, Any], steps: dict[str, type[Step]]) -> dict[str, Any]:
    forms: list[dict[str, Any]] = []
    bare = [name for name, step in steps.items() if not definitions[step.__name__].get("required")]
    if bare:
        forms.append({"enum": bare})
    for name, step in steps.items():
        reference = {"$ref": f"#/$defs/{step.__name__}"}
        options: list[dict[str, Any]] = [reference]
        if step.shorthand is not None:
            options.append(definitions[step.__name__]["properties"][step.shorthand])
        if name in bare:
            options.append({"type": "null"})
        forms.append(
            {
                "type": "object",
                "properties": {name: {"anyOf": options} if len(options) > 1 else reference},
                "required": [name],
                "additionalProperties": False,
            }
        )
    return {"type": ["array", "null"], "description": schema["description"], "items": {"oneOf": forms}}


def main() -> None:
    """Writes the schema to the file that is named, or to standard output."""
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text(), encoding="utf-8")
    else:
        sys.stdout.write(text())


if __name__ == "__main__":
    main()
