"""TaskGraph -> smaller TaskGraph, with the way back; and the orders and levels that it takes."""
