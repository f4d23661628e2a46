"""Trying transforms out on the norms of a recorded run: the parts that `gradmedic.clip.advice` puts together."""
