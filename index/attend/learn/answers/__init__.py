"""What should be answered: blended values, fitted and tried on held-out documents."""
