"""The edge, as clients and the router meet it: a real Envoy in front of a router that is made up."""
