"""Nothing here is ever run: see pyproject.toml."""

server = client = None
