"""What an analyst may ask of a table: estimands, and what one table says of them."""
