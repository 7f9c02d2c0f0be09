"""Plan -> annotated Relay, and back."""
