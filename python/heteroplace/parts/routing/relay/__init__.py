"""Cells, routers and branches: networks of which each input needs a part, in Relay.

`heteroplace.routing` is the module `public`; the core reads routers without loading it.
"""
