"""MILP-SPLIT of DiviML: modules solved exactly, put together by dynamic programming."""
