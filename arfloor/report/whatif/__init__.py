"""`arfloor whatif`: reads its inputs, and shows its answers as text, JSON and a waterfall."""
