"""Four GPUs of one box: what is predicted of them from two, and what a run on them measured."""
