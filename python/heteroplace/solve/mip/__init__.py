"""Mixed-integer linear programmes as data, and HiGHS to solve them."""
