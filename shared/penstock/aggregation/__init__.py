"""Sums of many sites, of which nobody sees a site's own part: what both sides agree on."""
