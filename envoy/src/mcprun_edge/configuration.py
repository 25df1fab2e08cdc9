"""Renders Envoy's configuration."""

import ipaddress
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from mcprun.runtime.rpc import split_host_port
from mcprun_edge.settings import EdgeSettings


def render(settings: EdgeSettings) -> str:
    """The configuration as YAML, the same for the same settings. Raises ValueError for an address that is none."""
    environment = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)  # noqa: S701 - it is no HTML
    template = environment.from_string(files("mcprun_edge").joinpath("edge.yaml.j2").read_text())
    return template.render(
        s=settings,
        host=lambda target: split_host_port(target)[0],
        port=lambda target: split_host_port(target)[1],
        is_static=_is_static,
    )


def _is_static(target: str) -> bool:
    """Whether an address needs no name service."""
    if target.startswith("unix:"):
        return True
    try:
        ipaddress.ip_address(split_host_port(target)[0])
    except ValueError:
        return False
    return True
