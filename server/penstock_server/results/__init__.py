"""From checked uploads to the report, and to what is pulled."""
