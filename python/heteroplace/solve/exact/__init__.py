"""One placement-and-schedule model as plain data, and the engines that solve it."""
