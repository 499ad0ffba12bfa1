"""Web servers for these tests, and nothing from outside."""

from tests.support.web_servers import alone, certificates, serve

__all__ = ["alone", "certificates", "serve"]
