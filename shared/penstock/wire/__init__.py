"""What crosses a trust boundary: canonical bytes, signatures, studies, manifests, tables, codes."""
