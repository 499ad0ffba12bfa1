"""What is asked of a federation: the study, and dictionaries and studies as TOML."""
