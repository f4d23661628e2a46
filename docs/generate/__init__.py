"""Pages of the documentation that are written from the code; `python docs/make_reference.py` runs all of it."""
