"""Parts that every room uses: arrays, types, errors, settings, deadlines."""
