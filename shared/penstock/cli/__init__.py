"""The ``penstock`` command. Groups of commands load only when they are used."""
