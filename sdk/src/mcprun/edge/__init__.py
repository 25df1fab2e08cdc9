"""The edge filter as its operators know it.

- `policy`: what people write: canary rules, circuit breakers, tenants
- `delivery`: how a policy or a module reaches a running edge, and what came of it
- `breakers`: the state of the breakers, as the filter tells it
"""
