"""From a filter in Python to one WebAssembly module that Envoy loads: `pipeline` runs the steps.

`application` looks at the filter, `tools` runs componentize-py, which makes a component of it, `lowering` joins the component's core
modules into one, with a `shim` between them and the host.
"""
