"""mcprun: a self-hosted inference mesh."""

from importlib.metadata import version

__version__ = version("mcprun")
