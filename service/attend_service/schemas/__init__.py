"""The bodies that only HTTP has: what is asked for beside `index`, and what is answered."""
