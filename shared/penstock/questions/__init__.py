"""What an analyst may ask of a table: estimands."""
