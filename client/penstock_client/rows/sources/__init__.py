"""Where a site's rows come from: one module per kind of source, and one closed registry of them."""
