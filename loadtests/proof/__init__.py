"""Does the router predict what a real engine reports as cached? Requests of all kinds, asked and scored."""
