"""One release of many sites: each adds to sums of all, and nobody sees a site's own."""
