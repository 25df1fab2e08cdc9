"""The edge of the mcprun inference mesh.

- `edge.yaml.j2`: Envoy's configuration, the one source of it
- `configuration`: renders it
- `envoy`: the Envoy process: start, drain, end
- `settings`, `main`: the process around it
"""
