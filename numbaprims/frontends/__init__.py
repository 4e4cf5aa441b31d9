"""Ways in from other libraries: what they need beyond arrays."""
