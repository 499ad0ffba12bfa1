"""A site's directories, settings and policy."""
