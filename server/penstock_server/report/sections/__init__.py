"""The report's sections: each a module, a template beside it, and a line in
:mod:`penstock_server.report.contents`.
"""
