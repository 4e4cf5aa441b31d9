"""One module a primitive: its cases, and for each case our call, the rivals in their best form, the check."""
