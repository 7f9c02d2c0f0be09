"""Recurrent layers as one op: a loop over the steps of a sequence within a kernel."""
