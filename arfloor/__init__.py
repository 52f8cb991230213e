"""arfloor: how far is your all-reduce from what the wires allow, and what is reaching it worth?"""

__version__ = "0.1.0"
