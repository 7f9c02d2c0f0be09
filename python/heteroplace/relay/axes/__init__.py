"""An axis followed through ops: which ops keep parts along it apart, and the shapes of parts."""
