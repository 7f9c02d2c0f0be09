"""Which numbers the values of a Relay function may hold, and which its inputs should.

Needs go backward, proofs forward: so a rule that is missing is found out rather than trusted.
"""
