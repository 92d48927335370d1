"""What a user would think of an item: the model of ratings, fitted and tried on held-out ones."""
