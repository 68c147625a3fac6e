"""One step of a scheme and the `Reducer` that runs it."""
