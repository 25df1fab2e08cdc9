"""From a filter's sources to one module that Envoy loads. Runs on the developer's machine, never in the filter.

`pipeline` does the steps in order: `application` looks at the filter's code, `componentizer` makes a component of it, `lowering` joins the
component to one core module with the help of `shim`, `trim` cuts what the filter cannot reach, `validation` checks the outcome, `cache` keeps it.
"""
