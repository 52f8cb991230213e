"""The report of a box on which nothing was measured: every figure predicted, and marked so.

All renderings take one view, `arfloor.core.outlook.Outlook`.
"""
