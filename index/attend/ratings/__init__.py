"""What a user would think of an item: the model of ratings, and attention over a user's own."""
