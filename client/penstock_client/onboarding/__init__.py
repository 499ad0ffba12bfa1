"""Making a site, certifying its rows, and joining a coordinator."""
