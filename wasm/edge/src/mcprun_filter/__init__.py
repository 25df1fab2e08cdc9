"""The edge filter of the mesh: canary tags, circuit breaking, policies of tenants.

All modules here but `app` are pure: no hostcalls, time is an argument, and nothing is imported that WebAssembly could not run.
"""
