"""The coordinator's only public port: analysts' HTTPS API, and the sites' way to the SuperLink."""
