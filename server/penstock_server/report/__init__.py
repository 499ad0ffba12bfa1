"""The report: what a study found, as one HTML page and as JSON."""
