"""Routed networks in Relay: cells, routers and branches; see README.md."""
