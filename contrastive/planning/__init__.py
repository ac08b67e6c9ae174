"""Plans: the train step compiled ahead of time for machines that are not here."""
