"""The edge filter in real Envoy."""
