"""List schedulers: a plan from one pass over the tasks."""
