"""The descriptor pool of mcprun's own messages."""

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
"""Holds the generated messages apart from the default pool, where another client of the same protocol may have put its
own messages of the same names."""
