"""All that a pipeline does, by one file and in one JVM."""
