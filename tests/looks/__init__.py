"""What people see and how fast it comes, as pictures and figures: `make looks`."""
