"""Programs of the other ways of working. They run in an interpreter of their own, outside this package's."""
