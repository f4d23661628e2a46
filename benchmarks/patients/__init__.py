"""The patients benchmark: trainings with one seeded fault each, their healthy twins, and healthy controls."""
