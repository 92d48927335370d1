"""Collections: searching and writing them, their versions, and the folder that holds them."""
